from fleetcraft.actions.api import Task as Task
from fleetcraft.actions.api import Worker as Worker
from fleetcraft.surfaces.python import Spool as Spool

__all__ = ["Spool", "Task", "Worker", "__version__"]

__version__: str
