"""The first store, which holds the truth: the application's own table in PostgreSQL."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Root of the application's tables; those of job-drain are no business of the ORM."""


class Document(Base):
    """A documentation string that has been saved.

    The id comes from a sequence, which no rollback winds back: the id of a document that was rolled
    back is never given out again, so whatever carries it must come from that transaction.
    """

    __tablename__ = "documents"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str]
    text: Mapped[str]


def engine(database_url: str) -> sqlalchemy.Engine:
    """Connections to the database that a `postgresql://` URL names, through psycopg 3."""
    return sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))


def create(database_url: str) -> None:
    """Create the table."""
    creator = engine(database_url)
    Base.metadata.create_all(creator)
    creator.dispose()
