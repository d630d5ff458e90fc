"""An application with an order, and tasks."""
