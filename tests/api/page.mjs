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
// Pictures are for people; every check below is made without them.
async function picture(name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` });
}
async function check(name, condition, shown) {
  if (!condition) {
    await picture('failed');
    console.error(`FAILED page ${name}:`, shown, faults);
    process.exit(1);
  }
  console.log('ok page', name);
}
const answers = (count) => page.waitForFunction((n) => document.querySelectorAll('.figures:not(:empty)').length === n, count);
const ask = async (text, count) => { await page.fill('#input', text); await page.keyboard.press('Enter'); await answers(count); };
// What is on the screen, from black (0) to white (1).
async function brightness() {
  const shot = (await page.screenshot()).toString('base64');
  return page.evaluate(async (shot) => {
    const image = Object.assign(new Image(), { src: `data:image/png;base64,${shot}` });
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height }).getContext('2d');
    canvas.drawImage(image, 0, 0);
    const { data } = canvas.getImageData(0, 0, image.width, image.height);
    let sum = 0;
    for (let at = 0; at < data.length; at += 4) sum += data[at] + data[at + 1] + data[at + 2];
    return sum / (data.length / 4 * 3 * 255);
  }, shot);
}
// Least contrast between a text and what it stands on (WCAG's ratio) among the kinds of text that an answer and the page have.
const contrast = () => page.evaluate(() => {
  const light = (rgb) => rgb.reduce((sum, part, i) => sum + [0.2126, 0.7152, 0.0722][i] * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4), 0);
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const behind = (node) => {
    const color = parts(getComputedStyle(node).backgroundColor);
    return color[3] === 0 && node.parentElement ? behind(node.parentElement) : color;
  };
  const ratio = (node) => {
    const [a, b] = [parts(getComputedStyle(node).color), behind(node)].map((rgb) => light(rgb.slice(0, 3).map((part) => part / 255)) + 0.05);
    return Math.max(a, b) / Math.min(a, b);
  };
  const kinds = ['.model', 'header h1', 'article.user .body', '.text', 'details.think summary', '.call .name', '.call code', '.figures', '#send', '#input'];
  return Math.min(...kinds.map((kind) => ratio(document.querySelector(kind))));
});

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
const thought = page.locator('details.think:not([hidden]) div').last();
await check('hides it while folded', !(await thought.isVisible()));
await page.locator('details.think:not([hidden]) summary').last().click();
await check('unfolds it', (await thought.isVisible()) && (await thought.textContent()).length > 5, await thought.textContent());
const [summary, hidden] = [await page.textContent('details.think[open] summary'), await page.textContent('article.assistant .text')];
await check('says how long it thought', /^Thought for [\d.]+ s$/.test(summary) && !hidden.includes('</think>'), summary);
await check('shows calls', (await page.textContent('.call .name')) === 'get_weather' && (await page.textContent('.call pre')).includes('Rome'));
await page.fill('form.call textarea', 'sunny, 21 degrees');
await page.click('form.call button');
await answers(3);
await check('takes results of calls', (await page.locator('article').count()) === 6, await page.locator('article').count());
await check('shows results', (await page.locator('.call .result').isVisible()) && (await page.textContent('.call .result')) === 'sunny, 21 degrees');

await page.keyboard.press('Control+,');
await page.fill('textarea[name=tools]', '');
// Any token is as likely as any other, so that the answer does not end by itself within seconds.
for (const [name, value] of [['temperature', '100'], ['top_k', '0'], ['top_p', '1'], ['min_p', '0']]) await page.fill(`input[name=${name}]`, value);
await page.click('button[value=save]');
await page.fill('#input', 'Tell me everything.');
await page.keyboard.press('Enter');
await page.waitForFunction(() => document.querySelector('#send').textContent === 'Stop' && document.querySelectorAll('article').length === 8);
await page.keyboard.press('Escape');
await answers(4);
await check('stops', (await page.locator('.figures').last().textContent()).includes('stopped'));
const written = await page.locator('article').last().textContent();
await page.waitForTimeout(300);
const after = [await page.textContent('#send'), await page.locator('article').last().textContent()];
await check('writes no more then', after[0] === 'Send' && after[1] === written, after);

await page.focus('#main');
await page.keyboard.press('/');
await page.keyboard.type('one');
await page.keyboard.press('Shift+Enter');
await page.keyboard.type('two');
const typed = [await page.inputValue('#input'), await page.locator('article').count()];
await check('breaks lines without sending', typed[0] === 'one\ntwo' && typed[1] === 8, typed);
await page.fill('#input', '');
const kept = await page.evaluate(() => localStorage.getItem('lily.chats'));
await page.keyboard.press('ArrowUp');
const back = [await page.inputValue('#input'), await page.locator('article').count()];
await check('takes the last question back', back[0] === 'Tell me everything.' && back[1] === 6, back);
await page.evaluate((kept) => localStorage.setItem('lily.chats', kept), kept);
await page.reload();
await page.waitForSelector('article');

const light = [await brightness(), await contrast()];
await check('is light', light[0] > 0.8 && light[1] >= 4.5, light);
await picture('light');
await page.emulateMedia({ colorScheme: 'dark' });
const asked = await brightness();
await check('is dark where the system is', asked < 0.25, asked);
await page.emulateMedia({ colorScheme: 'light' });

await page.click('#theme');
await page.click('#theme');
const dark = [await brightness(), await contrast()];
await check('turns dark', dark[0] < 0.25 && dark[1] >= 4.5, dark);
await picture('dark');
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
