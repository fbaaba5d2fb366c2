"""The routes, by file: every module of this package exports its `ROUTER` and is served because it is here."""

from __future__ import annotations

from fastapi import APIRouter

from edgeinfer.registry import Registry

ROUTES: Registry[APIRouter] = Registry("edgeinfer.app.server.routes", "ROUTER", "route")
