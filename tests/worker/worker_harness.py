"""The virtual-time harness lives in ``streamclient.testing.simulation``; these are its names for tests."""

from __future__ import annotations

from streamclient.testing.simulation.scene import UNREACHABLE as UNREACHABLE
from streamclient.testing.simulation.scene import FaultyLeases as FaultyLeases
from streamclient.testing.simulation.scene import Journal as Journal
from streamclient.testing.simulation.scene import RecordingProcessor as RecordingProcessor
from streamclient.testing.simulation.scene import World as World
from streamclient.testing.simulation.workers import SimulatedWorker as SimulatedWorker
from streamclient.testing.simulation.workers import Simulation as Simulation
