"""Tools for tests: records, processor runs, simulations, contracts of interfaces, worker processes, delivery checks.

The names ``Faults``, ``Run``, ``SimulationFailed``, ``SimulationResult`` and ``StreamSimulation`` belong to the pytest
fixture ``stream_simulation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.testing.builders import delete, put, update
    from streamclient.testing.contracts.destination_contract import (
        DESTINATION_SCENARIOS,
        check_destination,
        check_destination_scenario,
    )
    from streamclient.testing.contracts.lease_manager_contract import (
        LEASE_MANAGER_SCENARIOS,
        check_lease_manager,
        check_lease_manager_scenario,
    )
    from streamclient.testing.contracts.merging_contract import (
        MERGING_SCENARIOS,
        check_merging_destination,
        check_merging_scenario,
    )
    from streamclient.testing.contracts.parking_contract import check_parking_store
    from streamclient.testing.contracts.worker_directory_contract import (
        WORKER_DIRECTORY_SCENARIOS,
        check_worker_directory,
        check_worker_directory_scenario,
    )
    from streamclient.testing.deliveries import (
        Delivery,
        DeliveryRecorder,
        ShardHistory,
        Verdict,
        judge,
        read_deliveries,
        read_history,
        unread,
    )
    from streamclient.testing.fleet import Fleet, WorkerProcess
    from streamclient.testing.journal import LeaseHistory, LeaseJournal, LeaseWriting, judge_leases, recoveries
    from streamclient.testing.processor_run import ProcessorRun, RunFailed, run
    from streamclient.testing.simulation.trials.trial_fixture import (
        SimulationFailed,
        SimulationResult,
        StreamSimulation,
    )
    from streamclient.testing.simulation.trials.trial_settings import Faults, Run

__all__ = [
    "DESTINATION_SCENARIOS",
    "LEASE_MANAGER_SCENARIOS",
    "MERGING_SCENARIOS",
    "WORKER_DIRECTORY_SCENARIOS",
    "Delivery",
    "DeliveryRecorder",
    "Faults",
    "Fleet",
    "LeaseHistory",
    "LeaseJournal",
    "LeaseWriting",
    "ProcessorRun",
    "Run",
    "RunFailed",
    "ShardHistory",
    "SimulationFailed",
    "SimulationResult",
    "StreamSimulation",
    "Verdict",
    "WorkerProcess",
    "check_destination",
    "check_destination_scenario",
    "check_lease_manager",
    "check_lease_manager_scenario",
    "check_merging_destination",
    "check_merging_scenario",
    "check_parking_store",
    "check_worker_directory",
    "check_worker_directory_scenario",
    "delete",
    "judge",
    "judge_leases",
    "put",
    "read_deliveries",
    "read_history",
    "recoveries",
    "run",
    "unread",
    "update",
]

_HOMES = {
    "DESTINATION_SCENARIOS": "contracts.destination_contract",
    "Delivery": "deliveries",
    "DeliveryRecorder": "deliveries",
    "Faults": "simulation.trials.trial_settings",
    "Fleet": "fleet",
    "LEASE_MANAGER_SCENARIOS": "contracts.lease_manager_contract",
    "LeaseHistory": "journal",
    "LeaseJournal": "journal",
    "LeaseWriting": "journal",
    "MERGING_SCENARIOS": "contracts.merging_contract",
    "ProcessorRun": "processor_run",
    "Run": "simulation.trials.trial_settings",
    "RunFailed": "processor_run",
    "ShardHistory": "deliveries",
    "SimulationFailed": "simulation.trials.trial_fixture",
    "SimulationResult": "simulation.trials.trial_fixture",
    "StreamSimulation": "simulation.trials.trial_fixture",
    "Verdict": "deliveries",
    "WORKER_DIRECTORY_SCENARIOS": "contracts.worker_directory_contract",
    "WorkerProcess": "fleet",
    "check_destination": "contracts.destination_contract",
    "check_destination_scenario": "contracts.destination_contract",
    "check_lease_manager": "contracts.lease_manager_contract",
    "check_lease_manager_scenario": "contracts.lease_manager_contract",
    "check_merging_destination": "contracts.merging_contract",
    "check_merging_scenario": "contracts.merging_contract",
    "check_parking_store": "contracts.parking_contract",
    "check_worker_directory": "contracts.worker_directory_contract",
    "check_worker_directory_scenario": "contracts.worker_directory_contract",
    "delete": "builders",
    "judge": "deliveries",
    "judge_leases": "journal",
    "put": "builders",
    "read_deliveries": "deliveries",
    "read_history": "deliveries",
    "recoveries": "journal",
    "run": "processor_run",
    "unread": "deliveries",
    "update": "builders",
}
"""The module of each public name, relative to this package. Python loads a module when a program first uses one of its
names. This keeps the import of the package cheap, because pytest imports the package in every run."""


__getattr__ = loader(__name__, _HOMES)
