"""The self-contained folder: save, load, check, migrate, export, import."""

from fledge.bundle.load import Bundle, load_bundle
from fledge.bundle.manifest import Manifest, read_manifest
from fledge.bundle.save import TrainingState, save_bundle

__all__ = ["Bundle", "Manifest", "TrainingState", "load_bundle", "read_manifest", "save_bundle"]
