"""The routes, one file each. Every module in this package exports a `ROUTER` and is served automatically."""

from __future__ import annotations

from fastapi import APIRouter

from edgeinfer.registry import Registry

ROUTES: Registry[APIRouter] = Registry("edgeinfer.app.server.routes", "ROUTER", "route")
