"""What the manifests say of Tailrace is true of Tailrace, and of each other."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from engine.journal import MemoryJournal
from engine.lifecycle import Lifecycle
from engine.scripted import Script, ScriptedEngine
from engine.supervisor import Supervisor
from metrics.instruments import TABLE, Instruments
from routes.application import HttpSettings, build_application
from settings import CHANGED_FLAGS, OWN_FLAGS, SERVER_FLAGS
from tests.deploy.conftest import DEPLOY, ROOT, Manifest, Rendered

# docs/operations.md: stopping the engine takes up to 5 s. Twice that, for a machine with other things to do.
ENGINE_STOP_S = 10
SHUTDOWN_TIMEOUT_S = next(flag.default for flag in CHANGED_FLAGS if flag.name == "shutdown-timeout")

# Of ingress-nginx's list of annotations, those about streams, sizes, timeouts and pods.
INGRESS_NGINX = {
    "affinity", "affinity-mode", "proxy-body-size", "proxy-buffering", "proxy-connect-timeout", "proxy-http-version",
    "proxy-next-upstream", "proxy-next-upstream-timeout", "proxy-next-upstream-tries", "proxy-read-timeout",
    "proxy-request-buffering", "proxy-send-timeout", "session-cookie-name", "session-cookie-path", "ssl-redirect",
}  # fmt: skip


def paths_of_the_application() -> set[str]:
    instruments = Instruments(CollectorRegistry())
    supervisor = Supervisor(ScriptedEngine(Script(["a"], 0, 0)), Lifecycle())
    application = build_application(supervisor, MemoryJournal(lambda: 0.0), instruments, HttpSettings())
    return {route.path for route in application.routes if isinstance(route, Route)}


def probes(container: Manifest) -> dict[str, Manifest]:
    return {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}


def test_a_drain_is_over_before_the_kubelet_kills(manifests: Rendered) -> None:
    pre_stop_s = manifests.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert isinstance(SHUTDOWN_TIMEOUT_S, int)
    assert pre_stop_s >= 3
    assert "--shutdown-timeout" not in " ".join(manifests.container["args"])
    assert manifests.pod["terminationGracePeriodSeconds"] > pre_stop_s + SHUTDOWN_TIMEOUT_S + ENGINE_STOP_S


def test_the_page_about_deployment_has_the_same_times(manifests: Rendered) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    pre_stop_s = manifests.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert f"waits for {pre_stop_s} s (`preStop`)" in page
    assert f"for up to {SHUTDOWN_TIMEOUT_S} s (`--shutdown-timeout`)" in page
    assert f"After {manifests.pod['terminationGracePeriodSeconds']} s\n" in page


def test_probes_ask_addresses_that_exist(manifests: Rendered) -> None:
    asked = {name: probe["httpGet"]["path"] for name, probe in probes(manifests.container).items()}
    assert asked == {"startup": "/readyz", "liveness": "/healthz", "readiness": "/readyz"}
    assert set(asked.values()) <= paths_of_the_application()
    (port,) = manifests.container["ports"]
    assert {probe["httpGet"]["port"] for probe in probes(manifests.container).values()} == {port["name"]}
    assert port["containerPort"] == next(flag.default for flag in SERVER_FLAGS if flag.name == "port")


def test_a_model_has_half_an_hour_to_load_and_a_rollout_waits_for_it(manifests: Rendered) -> None:
    probe = probes(manifests.container)["startup"]
    load_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert load_s >= 1800
    assert manifests.one("Deployment")["spec"]["progressDeadlineSeconds"] > load_s


def test_the_container_runs_as_the_image_does(manifests: Rendered) -> None:
    (uid,) = re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    security = manifests.pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert {security["runAsUser"], security["runAsGroup"], security["fsGroup"]} == {int(uid)}
    assert manifests.pod["automountServiceAccountToken"] is False


def test_every_pod_keeps_to_the_restricted_standard(manifests: Rendered) -> None:
    pods = [manifest["spec"]["template"]["spec"] for manifest in manifests if manifest["kind"] == "Deployment"]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert not container["image"].endswith(":latest")
            assert ":" in container["image"]


def test_every_mount_has_a_volume_and_every_volume_a_mount(manifests: Rendered) -> None:
    for manifest in manifests:
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        mounts = [mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]]
        assert sorted(mounts) == sorted(volume["name"] for volume in pod["volumes"])


def test_what_is_written_to_can_be_written(manifests: Rendered) -> None:
    """The root file system is read-only: home, caches, temporary files and shared memory are on volumes."""
    writable = {mount["mountPath"] for mount in manifests.container["volumeMounts"]}
    assert writable >= {"/cache", "/tmp", "/dev/shm"}
    image = dict(re.findall(r"(XDG_CACHE_HOME|HF_HOME)=(\S+)", (ROOT / "Dockerfile").read_text()))
    environment = {variable["name"]: variable.get("value") for variable in manifests.container["env"]}
    for variable in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
        folder = Path(str(environment.get(variable) or image[variable]))
        assert writable & {str(folder), *map(str, folder.parents)}, variable
    shm = next(volume for volume in manifests.pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"]["medium"] == "Memory"


def test_variables_are_ones_that_tailrace_reads(manifests: Rendered) -> None:
    known = {flag.variable for flag in (*OWN_FLAGS, *CHANGED_FLAGS)}
    named = {variable["name"] for variable in manifests.container["env"] if variable["name"].startswith("TAILRACE_")}
    assert named <= known
    # Else Kubernetes would set TAILRACE_PORT, which is a flag of the scripted engine, to an address.
    assert manifests.pod["enableServiceLinks"] is False


def test_no_key_is_asked_for_without_the_secret(manifests: Rendered) -> None:
    secrets = [
        variable["valueFrom"]["secretKeyRef"] for variable in manifests.container["env"] if "valueFrom" in variable
    ]
    assert len(secrets) == 2
    assert all(secret["optional"] for secret in secrets)


def test_selectors_select_the_pods(manifests: Rendered) -> None:
    template = manifests.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests.one("Service")["spec"]["selector"],
        manifests.one("Deployment")["spec"]["selector"]["matchLabels"],
        manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(constraint["labelSelector"]["matchLabels"] for constraint in manifests.pod["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= template.items() for selector in selectors)
    service = manifests.one("Service")
    monitor = manifests.one("ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["endpoints"][0]["path"] in paths_of_the_application()


def test_the_ingress_spells_its_annotations_right(manifests: Rendered) -> None:
    annotations = manifests.one("Ingress")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert {name.removeprefix(prefix) for name in annotations} <= INGRESS_NGINX
    assert all(isinstance(value, str) for value in annotations.values())
    assert annotations[prefix + "proxy-next-upstream"] == "off"
    max_body_bytes = next(flag.default for flag in OWN_FLAGS if flag.name == "max-body-bytes")
    assert int(annotations[prefix + "proxy-body-size"].removesuffix("m")) << 20 == max_body_bytes


def test_the_ingress_leads_to_the_model_and_not_to_metrics(manifests: Rendered) -> None:
    (rule,) = manifests.one("Ingress")["spec"]["rules"]
    ports = {port["name"] for port in manifests.one("Service")["spec"]["ports"]}
    open_paths = set()
    for entry in rule["http"]["paths"]:
        assert entry["backend"]["service"]["name"] == "tailrace"
        assert entry["backend"]["service"]["port"]["name"] in ports
        open_paths |= {
            path
            for path in paths_of_the_application()
            if path == entry["path"] or (entry["pathType"] == "Prefix" and path.startswith(entry["path"] + "/"))
        }
    assert open_paths >= {"/", "/v1/stream", "/v1/chat/completions", "/v1/messages", "/api/chat"}
    assert not open_paths & {"/metrics", "/healthz", "/readyz"}


def test_scaling_asks_for_metrics_that_exist(manifests: Rendered) -> None:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("needs vllm, for the names of its metrics")
    vllm_names = set(re.findall(r'"(vllm:\w+)"', (Path(vllm.origin).parent / "v1/metrics/loggers.py").read_text()))
    histograms = {f"{row.name}_bucket" for row in TABLE if row.type == "histogram"}
    scaled = manifests.one("ScaledObject")["spec"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    named = {name for query in queries for name in re.findall(r"(?:vllm:|tailrace_)\w+", query)}
    assert named == {"vllm:num_requests_waiting", "tailrace_time_to_first_token_seconds_bucket"}
    assert named <= vllm_names | histograms
    assert scaled["scaleTargetRef"]["name"] == manifests.one("Deployment")["metadata"]["name"]
    assert scaled["minReplicaCount"] > manifests.one("PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_the_queue_may_grow_to_where_pods_are_added(manifests: Rendered) -> None:
    """--max-num-queued-reqs counts what runs, too: at --max-num-seqs or below, nothing would ever wait."""
    flags = dict(flag.split("=", 1) for flag in manifests.container["args"] if "=" in flag)
    queue = next(trigger for trigger in manifests.one("ScaledObject")["spec"]["triggers"] if trigger["name"] == "queue")
    can_wait = int(flags["--max-num-queued-reqs"]) - int(flags["--max-num-seqs"])
    assert can_wait > 2 * int(queue["metadata"]["threshold"])


def test_the_queries_ask_for_the_job_and_the_namespace_that_there_are(manifests: Rendered) -> None:
    job = manifests.one("Service")["metadata"]["labels"][manifests.one("ServiceMonitor")["spec"]["jobLabel"]]
    namespace = manifests.one("Deployment")["metadata"]["namespace"]
    for trigger in manifests.one("ScaledObject")["spec"]["triggers"]:
        assert f'{{job="{job}",namespace="{namespace}"}}' in trigger["metadata"]["query"]


def test_the_gpu_overlay_asks_for_a_gpu_and_names_a_model(gpu: Rendered) -> None:
    assert gpu.container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in gpu.pod["tolerations"]
    assert not gpu.container["args"][0].startswith("-")


def test_the_gateway_leads_to_the_pool_the_pool_to_its_picker_and_both_to_the_pods(gpu: Rendered) -> None:
    route = gpu.one("HTTPRoute")["spec"]
    assert route["parentRefs"] == [{"name": gpu.one("Gateway")["metadata"]["name"]}]
    assert route["rules"][0]["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "tailrace"}
    ]
    # Gateway API: a zero duration means no timeout, where the default may be 15 s.
    assert all(rule["timeouts"] == {"request": "0s"} for rule in route["rules"])
    to_the_pool = {match["path"]["value"] for match in route["rules"][0]["matches"]}
    assert to_the_pool <= paths_of_the_application()

    pool = gpu.one("InferencePool")["spec"]
    template = gpu.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= template.items()
    assert {port["number"] for port in pool["targetPorts"]} == {gpu.container["ports"][0]["containerPort"]}

    picker = pool["endpointPickerRef"]
    service = gpu.one("Service", picker["name"])["spec"]
    assert picker["port"]["number"] in {port["port"] for port in service["ports"]}
    deployment = gpu.one("Deployment", picker["name"])["spec"]["template"]
    assert service["selector"].items() <= deployment["metadata"]["labels"].items()
    assert not pool["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    (container,) = deployment["spec"]["containers"]
    flags = dict(flag.split("=", 1) for flag in container["args"])
    assert flags["--pool-name"] == gpu.one("InferencePool")["metadata"]["name"]
    (config,) = [manifest for manifest in gpu if manifest["kind"] == "ConfigMap"]
    assert Path(flags["--config-file"]).name in config["data"]
    assert deployment["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]


def test_every_file_is_part_of_what_is_rendered() -> None:
    for kustomization in (DEPLOY / "kubernetes").rglob("kustomization.yaml"):
        named = yaml.safe_load(kustomization.read_text())
        files = set(named["resources"]) | {patch["path"] for patch in named.get("patches", [])}
        files |= {file for generator in named.get("configMapGenerator", []) for file in generator["files"]}
        present = {path.name for path in kustomization.parent.iterdir() if path.is_file()} - {"kustomization.yaml"}
        assert present == {file for file in files if not file.startswith("..")}
