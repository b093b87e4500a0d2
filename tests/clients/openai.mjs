// The npm package `openai` against a server: `node openai.mjs BASE_URL`. Ends with 0 and a count of what it asked.
import assert from "node:assert/strict";
import OpenAI, { APIUserAbortError, AuthenticationError, BadRequestError, NotFoundError } from "openai";

const baseURL = process.argv[2];
const client = new OpenAI({ baseURL, apiKey: "secret", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const model = (await client.models.list()).data[0].id;
const asks = {
  async "the model"() {
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async "a chat"() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0 });
    assert.equal(answer.choices[0].message.content, "hello he");
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 8);
  },
  async "a streamed chat"() {
    const stream = await client.chat.completions.create({
      model, messages, max_tokens: 8, stream: true, stream_options: { include_usage: true },
    });
    let text = "", usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "hello he");
    assert.equal(usage.completion_tokens, 8);
  },
  async "a streamed chat put together by the client"() {
    const answer = await client.chat.completions.stream({ model, messages, max_tokens: 8 }).finalChatCompletion();
    assert.equal(answer.choices[0].message.content, "hello he");
  },
  async "several choices with log-probabilities"() {
    const answer = await client.chat.completions.create({
      model, messages, max_tokens: 4, n: 3, logprobs: true, top_logprobs: 2,
    });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
    assert.equal(answer.choices[2].logprobs.content.length, 4);
  },
  async "a completion"() {
    const answer = await client.completions.create({ model, prompt: "a", max_tokens: 6, temperature: 0 });
    assert.equal(answer.choices[0].text, "hello ");
  },
  async "a streamed completion that is left"() {
    const stream = await client.completions.create({ model, prompt: "a", max_tokens: 9000, stream: true });
    let seen = 0;
    for await (const chunk of stream) {
      if (chunk.choices.length && ++seen === 3) break;
    }
    assert.equal(seen, 3);
  },
  async "a request that is aborted"() {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 100);
    await assert.rejects(
      client.completions.create({ model, prompt: "a", max_tokens: 9000 }, { signal: controller.signal }),
      APIUserAbortError,
    );
  },
  async "twenty at once"() {
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => client.completions.create({ model, prompt: "a", max_tokens: 6 })),
    );
    assert.ok(answers.every((answer) => answer.choices[0].text === "hello "));
  },
  async "faults"() {
    const ask = (more) => client.chat.completions.create({ model, messages, ...more });
    await assert.rejects(ask({ temperature: 9 }), (error) => {
      assert.ok(error instanceof BadRequestError && error.param === "temperature" && error.status === 400);
      return true;
    });
    await assert.rejects(ask({ model: "another" }), NotFoundError);
    const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), AuthenticationError);
  },
};
for (const [what, ask] of Object.entries(asks)) {
  try {
    await ask();
  } catch (error) {
    console.error(`${what}: ${error.stack}`);
    process.exit(1);
  }
}
console.log(`openai (npm): ${Object.keys(asks).length} ways of asking`);
