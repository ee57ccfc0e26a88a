#!/usr/bin/env python3
"""A kubelet's stand-in: each Pod of the API server becomes a network namespace with an address of its own and one process.

No container is needed: of images only the suite's server of echoes is known, which is a program here; other Pods have an address and nothing
behind it. What a process says can be asked of the API server (`kubectl logs`), which asks here. The API server is asked every quarter of a
second, for PODS_SECONDS at most. `cluster.sh up` starts it, inside of the namespace."""

import base64
import collections
import datetime
import http.client
import http.server
import json
import os
import pathlib
import signal
import ssl
import subprocess
import threading
import time
import urllib.parse

RUN = pathlib.Path(os.environ["RUN"])
NAMESPACE = os.environ["NAMESPACE"]
ECHO = os.environ["KUBELAB"] + "/bin/echo-basic"
BRIDGE = "10.244.0.1"
NODE = "node"
EVERY_SECONDS = 0.25
ASK_SECONDS = 10
LOGS_PORT = 10250
# Lines of one process; older ones are forgotten.
LINES_MAX = 100_000


class Server:
    """The API server, by one connection that is made anew once where it has ended."""

    def __init__(self):
        keys = RUN / "keys"
        self.tls = ssl.create_default_context(cafile=str(keys / "authority.crt"))
        self.tls.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        self.connection = None

    def ask(self, method, path, body=None, content_type="application/json"):
        for _ in range(2):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=self.tls, timeout=ASK_SECONDS)
                text = None if body is None else json.dumps(body)
                self.connection.request(method, path, text, {"Content-Type": content_type})
                response = self.connection.getresponse()
                return response.status, json.loads(response.read() or b"null")
            except (OSError, http.client.HTTPException):
                self.connection = None
        return 0, None

    def merge(self, path, status):
        return self.ask("PATCH", path + "/status", {"status": status}, "application/merge-patch+json")


class Pod:
    """A namespace, its link to the bridge, and the process in it."""

    def __init__(self, number, resource):
        self.resource = resource
        self.namespace = resource["metadata"]["namespace"]
        self.name = resource["metadata"]["name"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.net = f"{NAMESPACE}-p{number}"
        self.link = f"pod{number}"
        self.address = f"10.244.{number // 250 + 1}.{number % 250 + 2}"
        self.process = None
        self.lines = collections.deque(maxlen=LINES_MAX)

    def start(self, server):
        """Says whether it runs: one whose Secret is not there yet is tried again."""
        volumes = self.volumes(server)
        if volumes is None:
            return False
        ip("netns", "add", self.net)
        ip("-n", self.net, "link", "set", "lo", "up")
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.net)
        ip("link", "set", self.link, "master", "pods", "up")
        ip("-n", self.net, "address", "add", self.address + "/16", "dev", "eth0")
        ip("-n", self.net, "link", "set", "eth0", "up")
        ip("-n", self.net, "route", "add", "default", "via", BRIDGE)
        container = self.resource["spec"]["containers"][0]
        if "echo-basic" in container["image"]:
            environment = self.environment(container, volumes)
            command = ["ip", "netns", "exec", self.net, ECHO]
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            threading.Thread(target=self.listen, args=[self.process.stdout], daemon=True).start()
        self.report(server)
        return True

    def listen(self, output):
        for line in output:
            self.lines.append((time.time(), line))

    def said(self, since):
        return b"".join(line for moment, line in list(self.lines) if moment >= since)

    def volumes(self, server):
        folders = {}
        for volume in self.resource["spec"].get("volumes", []):
            folder = RUN / "volumes" / self.resource["metadata"]["uid"] / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            folders[volume["name"]] = str(folder)
            if "secret" in volume:
                source, plural, read = volume["secret"], "secrets", base64.b64decode
                name = source["secretName"]
            elif "configMap" in volume:
                source, plural, read = volume["configMap"], "configmaps", str.encode
                name = source["name"]
            else:
                continue
            status, found = server.ask("GET", f"/api/v1/namespaces/{self.namespace}/{plural}/{name}")
            if status != 200:
                return None
            for item in source.get("items") or [{"key": key, "path": key} for key in found["data"]]:
                (folder / item["path"]).write_bytes(read(found["data"][item["key"]]))
        return folders

    def environment(self, container, volumes):
        mounts = {mount["mountPath"]: volumes.get(mount["name"], "/nonexistent") for mount in container.get("volumeMounts", [])}
        facts = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": self.address}
        values = {"PATH": os.environ["PATH"]}
        for variable in container.get("env", []):
            fact = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = facts.get(fact, "") if fact else variable.get("value", "")
            for inside, outside in mounts.items():
                value = value.replace(inside, outside)
            values[variable["name"]] = value
        return values

    def report(self, server):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if not self.resource["spec"].get("nodeName"):
            target = {"metadata": {"name": self.name}, "target": {"kind": "Node", "name": NODE}}
            server.ask("POST", self.path + "/binding", target)
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        containers = [
            {"name": each["name"], "ready": True, "started": True, "restartCount": 0, "image": each["image"], "imageID": "local",
             "state": {"running": {"startedAt": now}}}
            for each in self.resource["spec"]["containers"]
        ]
        status, _ = server.merge(self.path, {
            "phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}], "hostIP": BRIDGE, "startTime": now,
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
            "containerStatuses": containers,
        })
        print("pod", self.namespace, self.name, self.address, status, flush=True)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        ip("netns", "delete", self.net)


def logs(pods):
    """A kubelet's endpoint of logs: /containerLogs/NAMESPACE/POD/CONTAINER?sinceTime=TIME"""

    class Logs(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            _, what, namespace, name = (url.path.split("/") + [""] * 4)[:4]
            found = [pod for pod in list(pods.values()) if (pod.namespace, pod.name) == (namespace, name)]
            if what != "containerLogs" or not found:
                return self.send_error(404)
            since = urllib.parse.parse_qs(url.query).get("sinceTime")
            moment = datetime.datetime.fromisoformat(since[0].replace("Z", "+00:00")).timestamp() if since else 0
            body = found[0].said(moment)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(RUN / "keys/server.crt", RUN / "keys/server.key")
    server = http.server.ThreadingHTTPServer((BRIDGE, LOGS_PORT), Logs)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        print("ip", *words, done.stderr.strip(), flush=True)


def node(server):
    server.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}})
    room = {"cpu": "2", "memory": "16Gi", "pods": "250"}
    server.merge(f"/api/v1/nodes/{NODE}", {
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pods.py"}],
        "addresses": [{"type": "InternalIP", "address": BRIDGE}], "capacity": room, "allocatable": room,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": LOGS_PORT}},
    })


def follow(server, pods):
    end = time.monotonic() + float(os.environ.get("PODS_SECONDS", 3600))
    number = 0
    while time.monotonic() < end:
        status, listed = server.ask("GET", "/api/v1/pods")
        seen = set()
        for resource in listed["items"] if status == 200 else []:
            uid = resource["metadata"]["uid"]
            if resource["metadata"].get("deletionTimestamp"):
                if uid in pods:
                    pods.pop(uid).stop()
                pod = Pod(0, resource)
                server.ask("DELETE", pod.path + "?gracePeriodSeconds=0")
                continue
            seen.add(uid)
            if uid not in pods:
                number += 1
                pod = Pod(number, resource)
                if pod.start(server):
                    pods[uid] = pod
        if status == 200:
            for uid in [uid for uid in pods if uid not in seen]:
                pods.pop(uid).stop()
        time.sleep(EVERY_SECONDS)


def leave(*_):
    raise SystemExit


def main():
    signal.signal(signal.SIGTERM, leave)
    ip("link", "add", "pods", "type", "bridge")
    ip("address", "add", BRIDGE + "/16", "dev", "pods")
    ip("link", "set", "pods", "up")
    server, pods = Server(), {}
    node(server)
    logs(pods)
    try:
        follow(server, pods)
    finally:
        for pod in pods.values():
            pod.stop()
        ip("link", "delete", "pods")


main()
