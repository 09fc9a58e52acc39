"""The Session API of CX apps: sessions over HTTP and WebSocket, as text or as calls with audio."""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.session_api.routes import SessionRoutes

__all__ = ["SessionRoutes"]

__getattr__ = lazy_exports(__name__, {"SessionRoutes": "routes"})
