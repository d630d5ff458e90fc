// pg-boss: `node pgboss_app.mjs prepare`, and `node pgboss_app.mjs run SETTING SLOT PROCESSES` as a worker.
import pg from "pg";
import { PgBoss } from "pg-boss";
import { account, counter, DATABASE_URL, dieOnce, sleep, started, UPDATE, updateAndDie, WAIT_MS } from "./work.mjs";

const [act, setting, slot, processes] = process.argv.slice(2);
const batches = { burstWhenBatchFull: true };
const SETTINGS = {
  defaults: {},
  batched: { ...batches, batchSize: 1000 },
  sixteen: { ...batches, batchSize: 8, localConcurrency: 2 },
  transactional: { transactional: true },
};
const QUEUES = ["noop", "wait", "update", "started", "killed_before", "killed_after"];

const boss = new PgBoss({ connectionString: DATABASE_URL, useListenNotify: setting !== "defaults" });
boss.on("error", console.error);
await boss.start();
if (act === "prepare") {
  for (const queue of QUEUES) await boss.createQueue(queue, { notify: true });
  await boss.stop();
  process.exit();
}
const done = counter(Number(slot), Number(processes));
const pool = new pg.Pool({ connectionString: DATABASE_URL });

// pg-boss commits its transaction together with the job's completion: the earliest moment after is when both are seen.
async function dieOnceCommitted() {
  const balance = "SELECT FROM accounts WHERE id = 0 AND balance > 0";
  while (!(await pool.query(balance)).rowCount) await sleep(1);
  dieOnce("after");
}

async function killed(moment, transaction) {
  if (transaction) {
    await transaction.executeSql(UPDATE, [0]);
    if (moment === "before") dieOnce(moment);
    else void dieOnceCommitted();
    return;
  }
  const client = await pool.connect();
  await updateAndDie(client, moment);
  client.release();
}

const JOBS = {
  noop: () => done(),
  wait: async () => {
    await sleep(WAIT_MS);
    done();
  },
  update: async (data, transaction) => {
    await (transaction ? transaction.executeSql(UPDATE, account(data)) : pool.query(UPDATE, account(data)));
    done();
  },
  started: ({ number }) => {
    started(number);
    done();
  },
  killed_before: (_, transaction) => killed("before", transaction),
  killed_after: (_, transaction) => killed("after", transaction),
};
for (const queue of QUEUES) {
  await boss.work(queue, SETTINGS[setting], (jobs, transaction) =>
    Promise.all(jobs.map((job) => JOBS[queue](job.data, transaction))).then(() => {}));
}
