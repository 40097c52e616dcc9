"""compose.yaml and the manifests of Kubernetes: the product has what they name, and the field's tools agree."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from streamclient import ClientConfig
from streamclient.cli.main import make_parser
from streamclient.cli.run_sections import variable_of
from streamclient.cli.run_settings import RunSettings
from streamclient.copying.mirror_settings import load_mirror_settings
from streamclient.server import LocalTablestore
from streamclient.tablestore.instance import LOCAL_ACCESS_KEY_ID, LOCAL_ACCESS_KEY_SECRET, LOCAL_INSTANCE
from streamclient.worker.worker import SHUTDOWN_GRACE_SECONDS
from tests.docs.page_examples import commands
from tests.install.test_image import FOLDER, METRICS_PORT, PAGE, extras, instructions, last_stage
from tests.installed import ROOT
from tests.operate.alert_samples import MISSING as NO_PROMTOOL
from tests.operate.alert_samples import promtool
from tests.operate.operate_scene import Scene, run_cli
from tests.probing import Told
from tests.stage import make_table

COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("streamclient")}
WORKERS = {name: service for name, service in OURS.items() if service.get("command", [""])[0] == "run"}
MANIFESTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
}

CONNECTION = ("ENDPOINT", "INSTANCE", "ACCESS_KEY_ID", "ACCESS_KEY_SECRET")
"""The variables of the connection, without what they begin with."""

END_SECONDS = ClientConfig().shutdown_timeout_millis / 1_000 + SHUTDOWN_GRACE_SECONDS
"""The longest time in which a worker ends in order."""


def parsed(words: Sequence[str]) -> Namespace:
    """The arguments of a command; a command that the product does not have exits."""
    return make_parser([words[0]]).parse_args([*words])


def settings_of(words: Sequence[str], environment: Mapping[str, str]) -> RunSettings:
    settings = RunSettings.read(parsed(words), environment)
    settings.parts()
    return settings


# --- compose.yaml ----------------------------------------------------------------------------------------------------


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Volumes of a service, by the path in its container."""
    return {parts[1]: parts[0] for each in service.get("volumes", ()) for parts in [each.split(":")]}


def test_the_image_of_compose_has_what_a_mirror_needs_besides() -> None:
    (of_image,) = [rest for word, rest in instructions() if word == "ARG" and rest.startswith("EXTRAS=")]
    (of_compose,) = {service["build"]["args"]["EXTRAS"] for service in OURS.values()}

    assert {*of_compose.split(",")} == {*of_image.partition("=")[2].split(","), "postgres"} <= extras()


def test_compose_has_a_server_two_workers_a_mirror_and_their_watchers() -> None:
    assert {*SERVICES} == {*OURS, "postgres", "prometheus", "grafana"}
    assert {*OURS} == {"tablestore", "tables", "mirror", *WORKERS}
    assert len(WORKERS) == 2


def test_programs_of_compose_cannot_write_where_they_need_not() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        named = {source for source in mounts(service).values() if not source.startswith("./")}
        assert named <= {*COMPOSE["volumes"]}
        assert all(each.endswith(":ro") for each in service.get("volumes", ()) if each.startswith("./"))
    for service in OURS.values():
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert (FOLDER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).exists()


def test_ports_of_compose_are_of_this_machine_and_files_are_there() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    files = [source for service in SERVICES.values() for source in mounts(service).values() if source.startswith("./")]

    assert len(ports) == 3
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in ports)
    assert len(files) == 6
    assert all((FOLDER / file).is_file() for file in files)


def test_keys_and_passwords_of_compose_are_public_defaults() -> None:
    secret = re.compile("KEY|SECRET|PASSWORD|TOKEN")
    values = {
        value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if secret.search(name)
    }

    assert values == {LOCAL_ACCESS_KEY_ID, LOCAL_ACCESS_KEY_SECRET, "postgres", "admin"}


def test_the_server_of_compose_is_the_one_that_the_others_ask() -> None:
    service = SERVICES["tablestore"]
    arguments = parsed(service["command"])
    used = [each["environment"] for name, each in OURS.items() if name != "tablestore"]
    (endpoint,) = {environment["TABLESTORE_ENDPOINT"] for environment in used}

    assert urlsplit(endpoint).hostname in SERVICES
    assert arguments.allowed_host == [urlsplit(endpoint).hostname]
    assert arguments.port == urlsplit(endpoint).port
    assert service["ports"] == [f"127.0.0.1:{arguments.port}:{arguments.port}"]
    assert arguments.data in mounts(service)
    assert arguments.data in [rest.split()[-1] for word, rest in instructions() if word == "RUN"], "of its user"
    assert arguments.allow_public_secret
    assert {environment["TABLESTORE_INSTANCE"] for environment in used} == {LOCAL_INSTANCE}


def test_the_table_is_made_by_commands_that_the_product_has() -> None:
    service = SERVICES["tables"]
    (line,) = service["command"]
    described, created = (shlex.split(part.split(" >")[0]) for part in line.split("||"))

    assert service["entrypoint"] == ["sh", "-c"]
    assert (described[0], created[0]) == ("streamclient", "streamclient")
    assert parsed(described[1:]).table == parsed(created[1:]).table == "orders"


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_of_compose_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    service = WORKERS[name]
    settings = settings_of(service["command"], service["environment"])

    assert settings.make_worker(None).worker_identifier == name
    assert settings.value("stream", "data_table_name") == "orders"
    assert (settings.value("serve", "port"), settings.value("serve", "address")) == (METRICS_PORT, "0.0.0.0")


def test_the_mirror_of_compose_can_be_made() -> None:
    service = SERVICES["mirror"]
    (path, *_) = mounts(service)
    settings = load_mirror_settings(FOLDER / mounts(service)[path], service["environment"])
    status_tables = {each["environment"]["TABLESTORE_STATUS_TABLE"] for each in WORKERS.values()}
    conninfo = dict(each.split("=") for each in settings.destination["conninfo"].split())

    assert str(parsed(service["command"]).configuration) == path
    settings.make()
    assert settings.source["table"] == "orders"
    assert settings.source["status_table"] not in status_tables, "it would share the leases of the workers"
    assert conninfo["host"] in SERVICES
    assert conninfo["password"] == SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD"]


def test_programs_of_compose_have_the_time_to_end_in_order() -> None:
    for service in (*WORKERS.values(), SERVICES["mirror"]):
        assert int(service["stop_grace_period"].removesuffix("s")) > END_SECONDS


def test_services_wait_for_others_that_can_be_waited_for() -> None:
    waits = [each for service in SERVICES.values() for each in service.get("depends_on", {}).items()]

    assert len(waits) == 6
    for name, condition in waits:
        service = SERVICES[name]
        if condition == {"condition": "service_completed_successfully"}:
            assert "restart" not in service
        else:
            assert condition == {"condition": "service_healthy"}
            assert service.get("healthcheck", {}).get("test") or (name in OURS and "healthcheck" not in service)


def test_prometheus_and_grafana_of_compose_see_the_workers() -> None:
    prometheus, grafana = SERVICES["prometheus"], SERVICES["grafana"]
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (source,) = yaml.safe_load((FOLDER / "grafana-source.yaml").read_text())["datasources"]
    (boards,) = yaml.safe_load((FOLDER / "grafana-boards.yaml").read_text())["providers"]
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    url = urlsplit(source["url"])

    assert static["targets"] == [f"{name}:{METRICS_PORT}" for name in WORKERS]
    assert [f"/etc/prometheus/{file}" for file in config["rule_files"]] == [
        path for path, file in mounts(prometheus).items() if file == "./alerts.yaml"
    ]
    assert url.hostname == "prometheus"
    assert prometheus["ports"] == [f"127.0.0.1:{url.port}:{url.port}"]
    assert mounts(grafana)[f"{boards['options']['path']}/board.json"] == "./board.json"


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The arguments of the container, with the file of the ConfigMap at another path."""
    (mount,) = [each for each in container()["volumeMounts"] if each["name"] == "settings"]
    file = tmp_path / mount["subPath"]
    file.write_text(MANIFESTS["ConfigMap"]["data"][mount["subPath"]])
    assert mount["mountPath"] in container()["args"]
    return [str(file) if word == mount["mountPath"] else word for word in container()["args"]]


def test_the_manifests_are_a_deployment_its_settings_and_its_budget() -> None:
    deployment, budget = MANIFESTS["Deployment"]["spec"], MANIFESTS["PodDisruptionBudget"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]

    assert {*MANIFESTS} == {"ConfigMap", "Deployment", "PodDisruptionBudget"}
    assert deployment["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] == 1 < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_file_of_the_manifests_passes_the_check_of_a_run(
    words: list[str], local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scene(local)
    for name in CONNECTION:
        monkeypatch.setenv(f"TABLESTORE_{name}", str(getattr(local, name.lower())))
    monkeypatch.setenv("STREAMCLIENT_RUN_WORKER", "streamclient-7d9f")
    monkeypatch.setattr(sys, "path", [*sys.path])
    ran = run_cli(*words, "--check")

    assert (ran.code, ran.err) == (0, "")
    assert "one worker, streamclient-7d9f\n" in ran.out
    assert f"http://0.0.0.0:{METRICS_PORT}" in ran.out


def test_a_pod_gives_its_worker_a_name_and_its_keys_by_reference(words: list[str]) -> None:
    given = {each["name"]: each["valueFrom"] for each in container()["env"]}
    volumes = {each["name"]: each for each in pod()["volumes"]}
    paths = {each["mountPath"]: volumes[each["name"]] for each in container()["volumeMounts"]}
    settings = settings_of(words, {"TABLESTORE_ACCESS_KEY_ID": "id"})
    folder, _, file = str(settings.value("connection", "access_key_secret_file")).rpartition("/")
    secret = paths[folder]["secret"]
    needed = {given["TABLESTORE_ACCESS_KEY_ID"]["secretKeyRef"]["key"], *(item["key"] for item in secret["items"])}

    assert {*given} == {variable_of(("run", "worker")), "TABLESTORE_ACCESS_KEY_ID"}
    assert given["STREAMCLIENT_RUN_WORKER"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert file in {item["path"] for item in secret["items"]}
    assert given["TABLESTORE_ACCESS_KEY_ID"]["secretKeyRef"]["name"] == secret["secretName"]
    for told in ((FOLDER / "kubernetes.yaml").read_text(), PAGE.read_text()):
        assert f"create secret generic {secret['secretName']} " in told
        assert set(re.findall(r"--from-(?:literal|file)=([\w-]+)=", told)) == needed


def test_probes_ask_what_the_worker_serves(words: list[str]) -> None:
    settings = settings_of(words, {})
    (port,) = container()["ports"]
    probes = {name: each["httpGet"] for name, each in container().items() if name.endswith("Probe")}

    assert {name: each["path"].strip("/") for name, each in probes.items()} == {
        "livenessProbe": "live",
        "readinessProbe": "ready",
    }
    assert {each["path"].strip("/") for each in probes.values()} <= {*Told().judges()}
    assert {each["port"] for each in probes.values()} == {port["name"]}
    assert port["containerPort"] == settings.value("serve", "port") == METRICS_PORT
    assert settings.value("serve", "address") == "0.0.0.0"


def test_a_pod_ends_in_order_after_its_successor_is_seen() -> None:
    program, seconds = container()["lifecycle"]["preStop"]["exec"]["command"]

    assert program == "sleep"
    assert float(seconds) > ClientConfig().taker_interval_millis / 1_000
    assert pod()["terminationGracePeriodSeconds"] > float(seconds) + END_SECONDS


def test_a_pod_keeps_the_restricted_standard_and_has_the_user_of_the_image() -> None:
    of_pod, of_container = pod()["securityContext"], container()["securityContext"]

    assert f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}" == last_stage()["USER"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container["allowPrivilegeEscalation"] is False
    assert of_container["readOnlyRootFilesystem"] is True
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False
    assert {"mountPath": "/tmp", "name": "tmp"} in container()["volumeMounts"]
    assert {*container()["resources"]} == {"requests", "limits"}


# --- the tools of the field ------------------------------------------------------------------------------------------

TOOLS = ROOT / "build" / "deploy-tools" / "bin"
"""The folder in which ``make deploy-check`` puts tools."""

JUDGES = {
    "hadolint": ("hadolint Dockerfile", "Dockerfile", "USER 65532:65532", "USER root"),
    "check-jsonschema": (
        "check-jsonschema --builtin-schema vendor.compose-spec compose.yaml",
        "compose.yaml",
        "    image: docker.io/library/postgres",
        "    imag: docker.io/library/postgres",
    ),
    "docker-compose": (
        "docker-compose -f compose.yaml config --quiet",
        "compose.yaml",
        "{condition: service_healthy}",
        "{conditions: service_healthy}",
    ),
    "kubernetes-validate": ("kubernetes-validate --strict kubernetes.yaml", "kubernetes.yaml", "replicas:", "replica:"),
    "promtool": ("promtool check config prometheus.yaml", "prometheus.yaml", "scrape_configs:", "scrape_config:"),
}
"""The command of each tool, and a mistake in a file that it has to find."""


def tool(name: str) -> str:
    """The path of a tool; without it the test is skipped."""
    if name == "promtool":
        found = promtool()
        return found or pytest.skip(NO_PROMTOOL)
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}")
    return found or pytest.skip(f"{name} is neither on PATH nor in build/deploy-tools: see `make deploy-check`")


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGES)
def test_the_tool_finds_no_mistake_and_one_that_is_made(name: str, tmp_path: Path) -> None:
    line, file, right, wrong = JUDGES[name]
    program, words = tool(name), shlex.split(line)[1:]
    folder = tmp_path / "docs" / "deploy"
    shutil.copytree(FOLDER, folder)

    def judged() -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)

    well = judged()
    assert well.returncode == 0, well.stdout + well.stderr
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    assert judged().returncode != 0


# --- the page --------------------------------------------------------------------------------------------------------


def test_commands_of_the_page_are_those_of_the_product() -> None:
    """Words after the name of an image are a command, and files that are named are there."""
    lines = [command.partition("  #")[0] for command, _ in commands(PAGE.read_text())]
    given = [found[1] for line in lines if (found := re.search(r"^docker run .* (?:streamclient|shop) (.*)", line))]
    files = {word for line in lines for word in re.findall(r"docs/deploy/[\w.-]+", line)}

    assert {parsed(shlex.split(words)).command for words in given} == {"streamclient server", "streamclient run"}
    assert files >= {"docs/deploy/Dockerfile", "docs/deploy/compose.yaml", "docs/deploy/kubernetes.yaml"}
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.slow
def test_a_row_is_written_into_the_fleet_of_compose_as_the_page_shows(local: LocalTablestore, tmp_path: Path) -> None:
    (line,) = [command for command, _ in commands(PAGE.read_text()) if " exec " in command]
    service, program, option, code = shlex.split(line)[-4:]
    make_table(local.client(), "orders")
    variables = {f"TABLESTORE_{name}": str(getattr(local, name.lower())) for name in CONNECTION}
    subprocess.run([sys.executable, option, code], cwd=tmp_path, env={**os.environ, **variables}, check=True)

    assert (service in WORKERS, program) == (True, "python")
    assert len(local.client().get_row("orders", [("id", "o-1")])[1].attribute_columns) == 1


def test_the_page_tells_the_figures_of_the_files() -> None:
    text = " ".join(PAGE.read_text().split())
    (_, seconds) = container()["lifecycle"]["preStop"]["exec"]["command"]

    assert f"user {last_stage()['USER'].partition(':')[0]}" in text
    assert f"waits {seconds} s" in text
    assert f"at most {END_SECONDS:.0f} s" in text
    assert f"`terminationGracePeriodSeconds` is {pod()['terminationGracePeriodSeconds']}" in text
