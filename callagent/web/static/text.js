// Numbers and times as people read them.

const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function when(iso) {
  return iso ? moment.format(new Date(iso)) : "–";
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  return minutes ? `${minutes} min ${String(whole % 60).padStart(2, "0")} s` : `${whole} s`;
}

export function clock(seconds) {
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(1).padStart(4, "0")}`;
}

export function delay(seconds) {
  return seconds === null || seconds === undefined ? "–" : `${seconds.toFixed(2)} s`;
}

export function milliseconds(number) {
  if (number === null || number === undefined) return "–";
  return number >= 1000 ? `${(number / 1000).toFixed(2)} s` : `${Math.round(number)} ms`;
}

export function number(value) {
  return value || "withheld";
}

export function reason(value) {
  return value ? value.replaceAll("_", " ") : "in progress";
}

export function json(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString()} ${count === 1 ? one : many}`;
}
