// openai-node, Anthropic's client for Node, and the Vercel AI SDK's openai-compatible provider.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import Anthropic from '@anthropic-ai/sdk';
import { generateText, Output, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const MODEL = 'lily-nano';
const CAPITAL = [{ role: 'user', content: 'What is the capital of France?' }];
const PARIS = 'The capital of France is Paris.';
const WEATHER = [{ role: 'user', content: 'What is the weather in Rome for 3 days?' }];
const Weather = z.object({ city: z.enum(['Rome', 'Paris']), days: z.number().int().min(0).max(99) });
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
function check(name, condition, shown) {
  if (!condition) {
    console.error(`FAILED ${name}:`, JSON.stringify(shown));
    process.exit(1);
  }
  console.log('ok', name);
}

const openai = new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: 'any text' });
const chat = openai.chat.completions;
let answer = await chat.create({ model: MODEL, messages: CAPITAL, temperature: 0 });
check('openai-node chat', answer.choices[0].message.content === PARIS, answer);
let helper = chat.stream({ model: MODEL, messages: CAPITAL, temperature: 0, stream_options: { include_usage: true } });
answer = await helper.finalChatCompletion();
check('openai-node stream helper', answer.choices[0].message.content === PARIS && answer.usage.completion_tokens > 5, answer);
answer = await chat.parse({ model: MODEL, messages: CAPITAL, temperature: 0, response_format: zodResponseFormat(Weather, 'weather') });
check('openai-node parse', Weather.safeParse(answer.choices[0].message.parsed).success, answer);
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'The weather of a city', parameters: z.toJSONSchema(Weather) } }];
helper = chat.stream({ model: MODEL, messages: WEATHER, temperature: 0, tools, tool_choice: 'required' });
answer = await helper.finalChatCompletion();
check('openai-node streamed tools', same(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments), { city: 'Rome', days: 3 }), answer);
let seen = '';
for await (const event of await openai.responses.create({ model: MODEL, input: CAPITAL[0].content, temperature: 0, stream: true })) {
  if (event.type === 'response.output_text.delta') seen += event.delta;
}
check('openai-node responses', seen === PARIS, seen);
const error = await chat.create({ model: 'gpt-9', messages: CAPITAL }).catch((e) => e);
check('openai-node refusal', error instanceof OpenAI.NotFoundError && error.code === 'model_not_found' && error.requestID, error);
const aborted = new AbortController();
const stream = await chat.create({ model: MODEL, messages: CAPITAL, stream: true, logit_bias: { 4087: -100, 4089: -100 } }, { signal: aborted.signal });
for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
aborted.abort();
check('openai-node leaves', true);

const anthropic = new Anthropic({ baseURL: process.env.ANTHROPIC_BASE_URL, apiKey: 'any text' });
const message = await anthropic.messages.stream({ model: MODEL, max_tokens: 50, messages: CAPITAL, temperature: 0 }).finalMessage();
check('anthropic-node stream', message.content[0].text === PARIS && message.stop_reason === 'end_turn', message);

const lily = createOpenAICompatible({ name: 'lily', baseURL: process.env.OPENAI_BASE_URL, includeUsage: true, supportsStructuredOutputs: true });
const model = lily(MODEL);
let result = await generateText({ model, messages: CAPITAL, temperature: 0 });
check('AI SDK', result.text === PARIS && result.usage.outputTokens > 5, result.usage);
const streamed = streamText({ model, messages: CAPITAL, temperature: 0 });
seen = '';
for await (const text of streamed.textStream) seen += text;
check('AI SDK stream', seen === PARIS && (await streamed.usage).outputTokens > 5, seen);
result = await generateText({ model, messages: CAPITAL, temperature: 0, output: Output.object({ schema: Weather }) });
check('AI SDK object', Weather.safeParse(result.output).success, result.output);
const weather = tool({ description: 'The weather of a city', inputSchema: Weather, execute: async () => 'sunny' });
const calls = streamText({ model, messages: WEATHER, temperature: 0, tools: { get_weather: weather }, toolChoice: 'required' });
await calls.consumeStream();
check('AI SDK streamed tools', same((await calls.toolCalls)[0].input, { city: 'Rome', days: 3 }), await calls.toolCalls);
const thinking = streamText({ model, messages: [{ role: 'user', content: 'What is 17 + 25?' }], temperature: 0, providerOptions: { lily: { reasoningEffort: 'high' } } });
await thinking.consumeStream();
check('AI SDK reasoning', (await thinking.reasoningText)?.length > 10 && (await thinking.text).includes('42'), await thinking.reasoningText);
