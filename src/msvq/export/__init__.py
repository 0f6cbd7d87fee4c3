"""Encoders for other tools: a folder that their own libraries load, checked before it is called done."""

from msvq.export.exporting import Exported, export_run
from msvq.export.plans import FORMATS

__all__ = ["FORMATS", "Exported", "export_run"]
