import assert from "node:assert/strict";
import { test } from "node:test";
import { mainObjective, objective } from "../src/objectives.ts";

test("an objective's key tells its label, unit and direction", () => {
  const told = (key: string) => {
    const { label, unit, better } = objective(key);
    return [label, unit, better];
  };
  assert.deepEqual(told("latency_ms"), ["Latency", "ms", "lower"]);
  assert.deepEqual(told("p95_latency_us"), ["P95 latency", "µs", "lower"]);
  assert.deepEqual(told("load_s"), ["Load", "s", "lower"]);
  assert.deepEqual(told("size_mb"), ["Size", "MB", "lower"]);
  assert.deepEqual(told("size_kb"), ["Size", "kB", "lower"]);
  assert.deepEqual(told("peak_bytes"), ["Peak", "bytes", "lower"]);
  assert.deepEqual(told("top1_share"), ["Top1", "share", "higher"]);
  assert.deepEqual(told("accuracy_drop_pct"), ["Accuracy drop", "%", "lower"]);
  assert.deepEqual(told("tokens_per_s"), ["Tokens", "per s", "higher"]);
  assert.deepEqual(told("throughput"), ["Throughput", "", "higher"]);
  assert.deepEqual(told("carbon"), ["Carbon", "", "lower"]);
});

test("time, energy and size are better when lower, whatever they are of; so much per second when higher", () => {
  const better = (key: string) => objective(key).better;
  for (const key of [
    "time_per_sample_ms",
    "latency_per_sample_us",
    "energy_per_step_j",
    "score_latency_ms",
    "score_latency",
    "precision_bits",
    "recall_mb",
    "latency_at_top_throughput_ms",
    "throughput_loss_pct",
  ]) {
    assert.equal(better(key), "lower", key);
  }
  for (const key of [
    "per_s",
    "images_per_second",
    "tokens_per_sec",
    "gb_per_s",
    "throughput_mb",
    "memory_savings_mb",
  ]) {
    assert.equal(better(key), "higher", key);
  }
  assert.equal(better("precision"), "higher");
  assert.equal(better("score_pct"), "higher");
});

test("latency or time is what accuracy is paid with first, then size", () => {
  assert.equal(mainObjective(["size_mb", "run_time_s"]), "run_time_s");
  assert.equal(mainObjective(["run_time_s", "latency_ms"]), "latency_ms");
  assert.equal(mainObjective(["carbon", "size_mb"]), "size_mb");
  assert.equal(mainObjective(["carbon"]), "carbon");
  assert.equal(mainObjective([]), undefined);
});
