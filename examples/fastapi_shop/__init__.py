"""A shop on FastAPI whose background work commits with its orders: payment, receipt, and the close of the day.

    POST /orders        commits the order, and with it the job `take_payment`
    GET /orders/42      waits a moment for the result of that job, and shows the state of the payment
    take_payment        `async def`: writes the payment, stages `send_receipt` and finishes itself, in one commit
    send_receipt        a sync job: sends a mail
    close_day           each night: closes the orders that are paid

    pages     what a customer posts and sees
    jobs      the jobs
    bank      stands for a payment provider
    tables    the tables of the shop, and its sessions
    tests     tests within one transaction, without Redis, a leader or a worker

README.md says how to run it.
"""
