// Elements, numbers, colours.

// el('p', {class: 'x', onclick: f}, 'text', child): text is never parsed as HTML.
function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(9).filter(c => c != null && c !== false));
  return node;
}

const trim = text => text.includes('.') ? text.replace(/\.?0+$/, '') : text;

// Three significant digits and a unit.
function scaled(x, steps) {
  const size = Math.abs(x);
  for (const [scale, unit] of steps) if (size >= scale * 0.9995) return digits(x / scale) + ' ' + unit;
  const [scale, unit] = steps[steps.length - 1];
  return digits(x / scale) + ' ' + unit;
}
const digits = (x, n = 3) => Math.abs(x) >= 1000 ? Math.round(x).toLocaleString('en')
  : trim(x.toPrecision(n).includes('e') ? x.toExponential(n - 1) : x.toPrecision(n));
const time = ns => ns === 0 ? '0' : scaled(ns, [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]);
// A tick's label: as many digits as tell it from the next one, `step` away; all up to `most` in one unit.
const decimals = step => Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
function timeTick(ns, step, most) {
  const [scale, unit] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']].find(([size]) => most >= size) || [1, 'ns'];
  return ns === 0 ? '0' : trim((ns / scale).toFixed(decimals(step / scale))) + ' ' + unit;
}
const countTick = (n, step) => Number(n.toFixed(decimals(step))).toLocaleString('en', {maximumFractionDigits: 9});
const bytes = n => scaled(n, [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']]);
const rate = (x, unit) => scaled(x, [[1e15, 'P' + unit], [1e12, 'T' + unit], [1e9, 'G' + unit], [1e6, 'M' + unit], [1, unit]]);
const percent = x => (100 * x).toFixed(1) + ' %';
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const sum = list => list.reduce((a, b) => a + b, 0);

// First index in [from, to) whose value is at least (or, with after, above) x; to if none.
function lowerBound(list, x, after = false, from = 0, to = list.length) {
  while (from < to) {
    const mid = (from + to) >> 1;
    if (after ? list[mid] <= x : list[mid] < x) from = mid + 1; else to = mid;
  }
  return from;
}

// The style sheet's colours, for canvases.
let palette = {};
const phaseColours = () => [palette.f, palette.b, palette.w, palette.o];
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['bg', 'panel', 'fg', 'muted', 'rule', 'focus', 'f', 'b', 'w', 'o', 'local', 'cross', 'exposed', 'hidden', 'compute'])
    palette[name] = style.getPropertyValue('--' + name).trim();
}
// Black or white, whichever reads better on a colour.
const inks = {};
function inkOn(colour) {
  if (!inks[colour]) {
    const [r, g, b] = [1, 3, 5].map(i => (parseInt(colour.slice(i, i + 2), 16) / 255) ** 2.2);
    inks[colour] = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? '#111' : '#fff';
  }
  return inks[colour];
}

function mix(a, b, part) {
  const channel = (c, i) => parseInt(c.slice(i, i + 2), 16);
  return '#' + [1, 3, 5].map(i => Math.round(channel(a, i) * part + channel(b, i) * (1 - part)).toString(16).padStart(2, '0')).join('');
}

const themeChanged = [];
function repaint(f) {
  f();
  themeChanged.push(f);
}
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readPalette();
  themeChanged.forEach(f => f());
}
// As the system says, until the button says otherwise.
function themeButton() {
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = false;
  const follow = () => chosen || setTheme(system.matches ? 'dark' : 'light');
  system.addEventListener('change', follow);
  follow();
  return el('button', {onclick: () => {
    chosen = true;
    setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  }}, 'Light / dark');
}

function legend(entries, note) {
  return el('ul', {class: 'legend'}, entries.map(([cls, text, style]) => el('li', {}, el('i', {class: cls, style}), text)), note && el('li', {}, note));
}
function table(head, rows) {
  return el('div', {class: 'scroll', tabindex: 0, role: 'group', 'aria-label': 'table'}, el('table', {},
    el('thead', {}, el('tr', {}, head.map(text => el('th', {scope: 'col'}, text)))),
    el('tbody', {}, rows.map(row => el('tr', {}, row.map((cell, i) =>
      i === 0 ? el('th', {scope: 'row'}, cell) : el('td', {}, cell)))))));
}
// A table that is made when it is opened.
function tableBelow(title, make) {
  const box = el('details', {}, el('summary', {}, title));
  box.addEventListener('toggle', () => box.children.length > 1 || box.append(...[make()].flat(9)), {once: true});
  return box;
}
function absent(...text) { return el('div', {class: 'absent'}, el('p', {}, ...text)); }
const code = text => el('code', {}, text);
