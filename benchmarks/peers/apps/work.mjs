// The work for peers on Node.js; `work.py` and `job_counter.py` describe its parts and files.
import { closeSync, openSync, readSync, writeSync } from "node:fs";

const HEADER_WORDS = 8, SLOT_WORDS = 4, WORD = 8;
const directory = process.env.BENCH_DIRECTORY;
let starts;

export const DATABASE_URL = process.env.BENCH_DATABASE_URL;
export const WAIT_MS = 10;
export const UPDATE = "UPDATE accounts SET balance = balance + 1 WHERE id = $1";
export const account = ({ number }) => [number % 10_000];
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const now = () => Number(process.hrtime.bigint()) / 1e9;

// Returns a function that counts a job. Node.js has no mmap: one write for all jobs of a turn of the event loop.
export function counter(slot, processes) {
  const file = openSync(`${directory}/ticks`, "r+");
  const row = Buffer.alloc(3 * WORD), head = Buffer.alloc(WORD);
  const at = (HEADER_WORDS + slot * SLOT_WORDS) * WORD;
  head.writeBigInt64LE(BigInt(processes));
  writeSync(file, head, 0, WORD, 0);
  readSync(file, row, 0, row.length, at);
  let jobs = row.readBigInt64LE(0), pending = 0;

  function write() {
    if (!jobs) row.writeDoubleLE(now(), WORD);
    jobs += BigInt(pending);
    pending = 0;
    row.writeBigInt64LE(jobs);
    row.writeDoubleLE(now(), 2 * WORD);
    writeSync(file, row, 0, row.length, at);
  }

  return () => {
    if (!pending++) setImmediate(write);
  };
}

export function started(number) {
  starts ??= openSync(`${directory}/starts`, "a");
  const row = Buffer.alloc(2 * WORD);
  row.writeDoubleLE(number, 0);
  row.writeDoubleLE(now(), WORD);
  writeSync(starts, row);
}

export function dieOnce(moment) {
  try {
    closeSync(openSync(`${directory}/died-${moment}`, "wx"));
  } catch {
    return;
  }
  process.kill(process.pid, "SIGKILL");
}

// Updates the first account in a transaction of its own; the first process to do so is killed at the moment.
export async function updateAndDie(client, moment) {
  await client.query("BEGIN");
  await client.query(UPDATE, [0]);
  if (moment === "before") dieOnce(moment);
  await client.query("COMMIT");
  if (moment === "after") dieOnce(moment);
}
