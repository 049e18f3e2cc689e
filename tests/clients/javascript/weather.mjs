// Vercel's AI SDK: `weather.mjs URL MODEL QUESTION` answers with a tool, whole and streamed, and prints what it got.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name, prompt] = process.argv.slice(2);
const model = createOpenAICompatible({ name: "cog-triton", baseURL, apiKey: "none" })(name);
const asked = [];
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      asked.push(city);
      return "18 degrees";
    },
  }),
};
const options = { model, prompt, tools, stopWhen: stepCountIs(4) };
const whole = await generateText(options);
const stream = streamText(options);
let streamed = "";
for await (const text of stream.textStream) streamed += text;
const [{ reasoningText }] = await stream.steps;
console.log(JSON.stringify({ whole: whole.text, streamed, reasoning: reasoningText, asked }));
