"""Pages of the shop: `uvicorn fastapi_shop.pages:app`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncSession

import drain
from fastapi_shop.jobs import Charge, Paid, refund, take_payment
from fastapi_shop.tables import Order, opened


class Basket(BaseModel):
    """Order as a customer posts it."""

    email: str
    cents: int = Field(gt=0)
    card: str


class Placed(BaseModel):
    """Answer to an order."""

    id: int


class PaymentView(BaseModel):
    """State of the job that takes the payment, with its progress, its result or its error."""

    state: str
    progress: str | None
    result: Paid | None
    error: str | None


class OrderView(BaseModel):
    """Page of an order."""

    id: int
    state: str
    payment: PaymentView | None


class Approval(BaseModel):
    """Colleague's answer to a refund."""

    approved: bool
    by: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold the pool of connections while the application runs."""
    async with opened() as app.state.sessions:
        yield


app = FastAPI(title="Shop", lifespan=lifespan)


async def session_of(request: Request) -> AsyncIterator[AsyncSession]:
    """Yield a session for one request."""
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(session_of)]


@app.post("/orders", status_code=201)
async def place(basket: Basket, session: Session) -> Placed:
    """Commit the order, and the job that takes its payment."""
    async with session.begin():
        order = Order(email=basket.email, cents=basket.cents)
        session.add(order)
        await session.flush()
        charge = Charge(order_id=order.id, cents=order.cents, card=basket.card)
        order.payment_job = await take_payment.astage(session, charge)
    return Placed(id=order.id)


@app.get("/orders/{order_id}")
async def show(order_id: int, session: Session, wait: Annotated[float, Query(ge=0, le=10)] = 2) -> OrderView:
    """Show an order; a payment that has not ended is waited for, `wait` seconds at most."""
    order = await session.get(Order, order_id)
    if order is None or order.payment_job is None:
        raise HTTPException(404, "no such order")
    result = None
    # A job that finished long ago is unknown: its day has been dropped.
    with suppress(drain.ResultError, drain.UnknownJobError):
        result = await drain.aresult(session, order.payment_job, timeout=wait)
    job = await drain.astate(session, order.payment_job)
    await session.refresh(order)
    payment = None if job is None else await _view(job, result)
    return OrderView(id=order.id, state=order.state, payment=payment)


@app.post("/orders/{order_id}/refund", status_code=202)
async def ask_for_refund(order_id: int, session: Session) -> None:
    """Commit the job that waits for the approval of a refund."""
    async with session.begin():
        await refund.astage(session, order_id)


@app.post("/orders/{order_id}/refund/approval", status_code=202)
async def answer_refund(order_id: int, approval: Approval, session: Session) -> None:
    """Commit a colleague's click."""
    async with session.begin():
        await drain.aemit(session, f"refund:{order_id}", approval.model_dump())


async def _view(job: drain.JobState, result: Paid | None) -> PaymentView:
    progress = None
    if job.state == "running":
        # Without Redis, the page lacks only the progress.
        with suppress(drain.DrainError):
            reported = await asyncio.to_thread(drain.progress, job.id)
            progress = None if reported is None else reported.text
    return PaymentView(state=job.state, progress=progress, result=result, error=job.error)
