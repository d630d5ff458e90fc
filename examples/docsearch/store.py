"""First store, the source of truth: the application's own table in PostgreSQL."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import BigInteger, Identity
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Root of the application's tables; the ORM does not know job-drain's tables."""


class Document(Base):
    """Documentation string that has been saved.

    The id comes from a sequence, which a rollback does not reset: the id of a document that was rolled back is never
    assigned again, so each trace of the id comes from that transaction.
    """

    __tablename__ = "documents"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    name: Mapped[str]
    text: Mapped[str]


def engine(database_url: str) -> sqlalchemy.Engine:
    """Create the engine for the database that a `postgresql://` URL names, through psycopg 3."""
    return sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))


def create(database_url: str) -> None:
    """Create the table of documents."""
    creator = engine(database_url)
    Base.metadata.create_all(creator)
    creator.dispose()
