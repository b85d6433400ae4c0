// The chat page in headless Chromium: what a person sees and does.
import { chromium } from 'playwright-core';

const base = process.env.ANTHROPIC_BASE_URL;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage({ viewport: { width: 1100, height: 760 }, colorScheme: 'light' });
const faults = [];
const foreign = [];
page.on('console', (message) => message.type() === 'error' && faults.push(message.text()));
page.on('pageerror', (error) => faults.push(error.message));
page.on('request', (request) => request.url().startsWith(base) || request.url().startsWith('data:') || foreign.push(request.url()));
async function check(name, condition, shown) {
  if (!condition) {
    if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/failed.png` });
    console.error(`FAILED page ${name}:`, shown, faults);
    process.exit(1);
  }
  console.log('ok page', name);
}
const answers = (count) => page.waitForFunction((n) => document.querySelectorAll('.figures:not(:empty)').length === n, count);
const ask = async (text, count) => { await page.fill('#input', text); await page.keyboard.press('Enter'); await answers(count); };

await page.goto(base + '/');
await page.waitForFunction(() => document.querySelector('#model').textContent.includes('lily-nano'));
await check('has the input focused', await page.evaluate(() => document.activeElement.id === 'input'));
await ask('What is the capital of France?', 1);
await check('answers', (await page.textContent('article.assistant .text')).includes('Paris'));
const figures = await page.textContent('.figures');
await check('shows speed and cache', /tokens at [\d.]+\/s/.test(figures) && /cached/.test(figures), figures);

await page.keyboard.press('Control+,');
await page.selectOption('select[name=thinking]', 'on');
await page.fill('input[name=temperature]', '0');
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
await page.fill('textarea[name=tools]', 'not JSON');
await page.click('button[value=save]');
await check('refuses tools that are none', await page.isVisible('#settings-error'));
await page.fill('textarea[name=tools]', JSON.stringify([{ type: 'function', function: { name: 'get_weather', description: 'The weather of a city', parameters: schema } }]));
await page.click('button[value=save]');
await ask('What is the weather in Rome?', 2);
await check('folds the thinking', await page.isVisible('details.think:not([hidden]):not([open]) summary'));
await check('shows calls', (await page.textContent('.call .name')) === 'get_weather' && (await page.textContent('.call pre')).includes('Rome'));
await page.fill('form.call textarea', 'sunny, 21 degrees');
await page.click('form.call button');
await answers(3);
await check('takes results of calls', (await page.locator('article').count()) === 6, await page.locator('article').count());

await page.keyboard.press('Control+,');
await page.fill('textarea[name=tools]', '');
await page.fill('input[name=temperature]', '100');
await page.click('button[value=save]');
await page.fill('#input', 'Tell me everything.');
await page.keyboard.press('Enter');
await page.waitForFunction(() => document.querySelector('#send').textContent === 'Stop' && document.querySelectorAll('article').length === 8);
await page.keyboard.press('Escape');
await answers(4);
await check('stops', (await page.locator('.figures').last().textContent()).includes('stopped'));

await page.click('#theme');
await page.click('#theme');
await check('turns dark', await page.evaluate(() => document.documentElement.dataset.theme === 'dark'));
if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/page.png` });
await page.reload();
await page.waitForSelector('article');
await check('keeps the conversation', (await page.locator('article').count()) === 8);
await page.keyboard.press('Control+Shift+O');
await check('begins another', await page.isVisible('#empty'));

// What a model writes is text, whatever it spells.
await page.evaluate(() => {
  const markup = '<img src=x onerror="window.broken = 1"> <script>window.broken = 2</script> [a](javascript:window.broken=3) **bold** `code`\n```\n<b>\n```';
  localStorage.setItem('lily.chats', JSON.stringify([{ id: 'x', title: 'x', messages: [{ role: 'user', content: markup }, { role: 'assistant', content: markup }] }]));
  localStorage.setItem('lily.current', '"x"');
});
await page.reload();
await page.waitForSelector('article.assistant strong');
const made = await page.evaluate(() => [window.broken, document.querySelectorAll('article img, article script, article a, article b').length, document.querySelectorAll('article pre code').length]);
await check('shows markup as text', made[0] === undefined && made[1] === 0 && made[2] === 1, made);
await check('asks nothing of anybody else', foreign.length === 0, foreign);
await check('has no errors', faults.length === 0, faults);
await browser.close();
