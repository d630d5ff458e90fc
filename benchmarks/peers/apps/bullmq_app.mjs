// BullMQ: `node bullmq_app.mjs fill chain 100`, and `node bullmq_app.mjs run` as a worker.
import { closeSync, openSync, writeSync } from "node:fs";
import { FlowProducer, Worker } from "bullmq";

const [act, name, count] = process.argv.slice(2);
const jobs = Number(count);
const directory = process.env.BENCH_DIRECTORY;
const path = new URL(process.env.BENCH_REDIS_URL).pathname;
const node = (number, children = [], as = "started") => ({
  name: as, queueName: "bench", data: { number }, children,
});

function started(number) {
  const row = Buffer.alloc(16);
  row.writeDoubleLE(number, 0);
  row.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9, 8);
  writeSync(openStarts, row);
}

function dieOnce() {
  try {
    closeSync(openSync(`${directory}/died-before`, "wx"));
  } catch {
    return;
  }
  process.kill(process.pid, "SIGKILL");
}

const openStarts = openSync(`${directory}/starts`, "a");
if (act === "fill") {
  let root = node(0);
  if (name === "chain") for (let n = 1; n <= jobs; n++) root = node(n, [root]);
  else root = node(jobs, Array.from({ length: jobs }, (_, n) => node(n, [], n || name !== "killed" ? "started" : name)));
  const producer = new FlowProducer({ connection: { path } });
  await producer.add(root);
  await producer.close();
} else {
  new Worker("bench", async (job) => {
    if (job.name === "killed") dieOnce();
    started(job.data.number);
  }, { connection: { path, maxRetriesPerRequest: null } });
}
