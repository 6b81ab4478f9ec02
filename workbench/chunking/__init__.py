"""From a graph to chunks and groups of equal chunks, and back to one program."""

from workbench.chunking.breaks import find_breaks
from workbench.chunking.group import Group, group
from workbench.chunking.once import Known, Parts, parts
from workbench.chunking.split import Chunk, output_value, split
from workbench.chunking.stitch import stitch

__all__ = ["Chunk", "Group", "Known", "Parts", "find_breaks", "group", "output_value", "parts", "split", "stitch"]
