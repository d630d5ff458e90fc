// Graphile Worker: `node graphile_app.mjs prepare`, and `node graphile_app.mjs run SETTING SLOT PROCESSES` as a worker.
import { run, runMigrations } from "graphile-worker";
import { account, counter, DATABASE_URL, sleep, started, UPDATE, updateAndDie, WAIT_MS } from "./work.mjs";

const [act, setting, slot, processes] = process.argv.slice(2);
const batches = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
const SETTINGS = {
  defaults: {},
  // What its page on performance was measured with.
  batched: { ...batches, concurrentJobs: 24, maxPoolSize: 25 },
  sixteen: { ...batches, concurrentJobs: 16, maxPoolSize: 17 },
};

if (act === "prepare") {
  await runMigrations({ connectionString: DATABASE_URL });
  process.exit();
}
const done = counter(Number(slot), Number(processes));
const killed = (moment) => (_, { withPgClient }) => withPgClient((client) => updateAndDie(client, moment));
await run({
  preset: { worker: { connectionString: DATABASE_URL, ...SETTINGS[setting] } },
  taskList: {
    noop: () => done(),
    wait: async () => {
      await sleep(WAIT_MS);
      done();
    },
    update: async (payload, { query }) => {
      await query(UPDATE, account(payload));
      done();
    },
    started: ({ number }) => {
      started(number);
      done();
    },
    killed_before: killed("before"),
    killed_after: killed("after"),
  },
});
