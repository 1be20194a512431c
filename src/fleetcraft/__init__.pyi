from fleetcraft.actions.api import Task as Task
from fleetcraft.actions.api import Worker as Worker
from fleetcraft.surfaces.progress import progress as progress
from fleetcraft.surfaces.python import Spool as Spool

__all__ = ["Spool", "Task", "Worker", "__version__", "progress"]

__version__: str
