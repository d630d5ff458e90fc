// BullMQ: `node bullmq_app.mjs fill chain 100`, and `node bullmq_app.mjs run` as a worker.
import { FlowProducer, Worker } from "bullmq";
import { dieOnce, started } from "./work.mjs";

const [act, name, count] = process.argv.slice(2);
const jobs = Number(count);
const path = new URL(process.env.BENCH_REDIS_URL).pathname;
const node = (number, children = [], as = "started") => ({
  name: as, queueName: "bench", data: { number }, children,
});

if (act === "fill") {
  let root = node(0);
  if (name === "chain") for (let n = 1; n <= jobs; n++) root = node(n, [root]);
  else root = node(jobs, Array.from({ length: jobs }, (_, n) => node(n, [], n || name !== "killed" ? "started" : name)));
  const producer = new FlowProducer({ connection: { path } });
  await producer.add(root);
  await producer.close();
} else {
  new Worker("bench", async (job) => {
    if (job.name === "killed") dieOnce("before");
    started(job.data.number);
  }, { connection: { path, maxRetriesPerRequest: null } });
}
