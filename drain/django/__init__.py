"""Jobs in an application of Django's.

    transaction   `drain.django.transaction()`: what a job writes through Django's ORM commits with the job's finish

What always holds: nothing here is imported by `import drain`, and Django itself only when it is used.
"""

from drain.django.transaction import transaction

__all__ = ["transaction"]
