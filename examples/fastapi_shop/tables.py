"""Tables of the shop, and the sessions on them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, ForeignKey, func, make_url
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Table(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map = {int: BigInteger, datetime: DateTime(timezone=True)}  # noqa: RUF012


class Order(Table):
    """Order of a customer; `payment_job` is the id of the job that takes the payment."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    cents: Mapped[int]
    state: Mapped[str] = mapped_column(default="new")
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    payment_job: Mapped[int | None]


class Payment(Table):
    """Payment of an order, at most one."""

    __tablename__ = "payments"

    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    reference: Mapped[str]
    receipt_sent: Mapped[bool] = mapped_column(default=False)


def sessions_on(bind: AsyncEngine | AsyncConnection, **options: Any) -> async_sessionmaker[AsyncSession]:
    """Return the maker of the sessions of the application."""
    return async_sessionmaker(bind, expire_on_commit=False, **options)


@asynccontextmanager
async def opened() -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    """Make the tables that are missing, and yield the maker of the sessions on DRAIN_DATABASE_URL."""
    url = make_url(os.environ["DRAIN_DATABASE_URL"]).set(drivername="postgresql+psycopg")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)
    yield sessions_on(engine)
    await engine.dispose()
