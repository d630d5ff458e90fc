"""Shop: an order is placed, paid and receipted, and each night closes the day.

models   `Order` and `Closing`
views    the form that places an order, and the page that shows how far it is
tasks    `take_payment`, `send_receipt`, and the nightly job `close_day`
urls     addresses of the two pages
tests    all of it within the transaction of a test

`project/` has the settings, and `manage.py` the commands.
"""
