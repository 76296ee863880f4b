// A run's metrics, settings and samples as they come: only what is new is asked for.

import { get } from "./api.js";

export class RunData {
  constructor(name) {
    Object.assign(this, { name, columns: {}, cursor: "", updated: null, settings: {}, samples: "", flops: undefined, problem: undefined });
  }

  /** What is new since the last time, where the run's files changed since; says whether there was anything. */
  async read(updated) {
    if (this.updated === updated) return false;
    const failed = [];
    const ask = (what, values) => get(`/api/runs/${what}`, { run: this.name, ...values }).catch((error) => { failed.push(error); return {}; });
    for (let more = true; more;) {
      const answer = await ask("metrics", { cursor: this.cursor });
      if (answer.reset) this.columns = {};
      for (const [column, values] of Object.entries(answer.columns ?? {})) this.columns[column] = (this.columns[column] ?? []).concat(values);
      this.cursor = answer.cursor ?? this.cursor;
      this.flops = answer.flops_per_token ?? this.flops;
      more = answer.more;
    }
    this.settings = (await ask("settings")).settings ?? {};
    this.samples = (await ask("samples")).text ?? this.samples;
    this.problem = failed[0]?.message;
    // What is wrong with the files stays so until they change; anything else may pass, and is asked for again.
    if (failed.every((error) => error.status < 429)) this.updated = updated;
    return true;
  }

  /** The last value of a column that is one. */
  last(column) { return (this.columns[column] ?? []).findLast((value) => value !== null && value !== undefined); }
}

/** The parts of samples.txt, each under a line that names its step. */
export function samplesOf(text) {
  const marks = [...text.matchAll(/^─+ step (\d+) ─+$/gm)];
  return marks.map((mark, i) => ({ step: Number(mark[1]), text: text.slice(mark.index + mark[0].length, marks[i + 1]?.index).trim() }));
}

const asNumbers = (values) => values.map((value) => (value === null ? NaN : value));

/** A line of a chart with holes where there is no number. */
export const numbers = (line) => ({ ...line, ys: asNumbers(line.ys), xs: asNumbers(line.xs) });
