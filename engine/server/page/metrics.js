// Reading /metrics, and what happened between two looks at it.

const LINE = /^engine:(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Name of a sample without its prefix → its series, each with labels and value.
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value;
    const series = found.get(match[1]) ?? [];
    series.push({ labels, value: match[3] === "+Inf" ? Infinity : Number(match[3]) });
    found.set(match[1], series);
  }
  return found;
}

export const total = (scrape, name) => (scrape.get(name) ?? []).reduce((sum, one) => sum + one.value, 0);

// How much a counter has grown; one that went down has begun anew.
export function grown(old, now, name) {
  const before = total(old, name);
  const after = total(now, name);
  return after >= before ? after - before : after;
}

function buckets(scrape, name) {
  const found = new Map();
  for (const { labels, value } of scrape.get(`${name}_bucket`) ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    found.set(bound, (found.get(bound) ?? 0) + value);
  }
  return [...found].sort((one, other) => one[0] - other[0]);
}

// The value below which a share of a histogram's new observations lie, evenly spread within a bucket; null without any.
export function quantile(old, now, name, share) {
  const before = new Map(buckets(old, name));
  const rows = buckets(now, name).map(([bound, count]) => [bound, Math.max(0, count - (before.get(bound) ?? 0))]);
  const all = rows.at(-1)?.[1] ?? 0;
  if (!all) return null;
  let bound = 0;
  let below = 0;
  for (const [upper, count] of rows) {
    if (count >= share * all && count > below) {
      return upper === Infinity ? bound : bound + ((upper - bound) * (share * all - below)) / (count - below);
    }
    bound = upper;
    below = count;
  }
  return bound;
}
