// The API of the server that this page came from, wherever it is mounted.

const STORED = "engine-api-key";
const BASE = new URL(".", location.href);

export class ApiError extends Error {
  constructor(status, message, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

let key = "";
try {
  key = sessionStorage.getItem(STORED) ?? "";
} catch {
  // Storage may be forbidden; the key then lives as long as the page.
}

export function useKey(value) {
  key = value;
  try {
    sessionStorage.setItem(STORED, value);
  } catch {
    // As above.
  }
}

export const hasKey = () => key !== "";
export const address = (path) => new URL(path, BASE).href;

// The response of a route that has answered well; throws ApiError with what the server says, status 0 if nobody answers.
export async function call(path, { body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path), {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  let problem = {};
  try {
    problem = (await response.json()).error;
  } catch {
    // No error object; the status has to do.
  }
  throw new ApiError(response.status, problem.message ?? `The server answered ${response.status}.`, problem.param);
}

// The events of a stream, until it is done. An event that is an error is thrown.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "The connection ended before the answer did.");
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code, event.error.message, event.error.param);
      yield event;
    }
  }
}
