"""Addresses of the two pages."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.place, name="place"),
    path("orders/<int:order_id>/", views.status, name="status"),
]
