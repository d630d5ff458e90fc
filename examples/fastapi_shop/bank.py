"""Stand-in for a payment provider."""

import asyncio


class DeclinedError(Exception):
    """The bank has declined; to ask again is no use."""


async def charge(key: str, card: str, cents: int) -> str:
    """Take the money, once for each `key`; returns the reference of the payment.

    Raises:
        DeclinedError: The card has no money left.
    """
    await asyncio.sleep(0.01)
    if card == "visa-0":
        raise DeclinedError(f"{card} has less than {cents / 100:.2f}")
    return f"pay-{key}"
