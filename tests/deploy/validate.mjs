// Reads manifests as JSON and prints what is wrong with each of those whose kind is known here.
//
// The validators pass over fields that they do not know, and a misspelt one would pass with them. So each manifest is
// given to them behind proxies that note which fields are looked at: one that no validator knows is never read.
import { readFileSync } from "node:fs";
import { Gateway, HTTPRoute } from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const KINDS = { Gateway, HTTPRoute, ScaledObject, ServiceMonitor };

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const children = Array.isArray(value) ? [] : {};
  for (const [key, child] of Object.entries(value)) {
    unread.add(`${path}.${key}`);
    children[key] = watched(child, `${path}.${key}`, unread);
  }
  return new Proxy(children, {
    get(target, key) {
      unread.delete(`${path}.${String(key)}`);
      return target[key];
    },
  });
}

const found = {};
for (const manifest of JSON.parse(readFileSync(0, "utf8"))) {
  const Kind = KINDS[manifest.kind];
  if (!Kind) continue;
  const unread = new Set();
  const problems = (found[manifest.kind] ??= []);
  try {
    const model = new Kind(manifest);
    model.spec = watched(model.spec, "spec", unread); // only now: the constructor reads everything
    model.validate();
    problems.push(...[...unread].map((path) => `${path}: no such field`));
  } catch (error) {
    problems.push(error.message);
  }
}
console.log(JSON.stringify(found));
