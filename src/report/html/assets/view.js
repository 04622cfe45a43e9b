// A drawing over time: zoom, pan, hover, keyboard. What is drawn comes from its owner:
//   height()        of the whole drawing; more than fits is scrolled
//   draw(g)         on g.ctx, from g.left to g.w; times by g.x(t), g.px ns a pixel
//   hit(x, t, y)    the item there, or null; items have t0 and t1
//   about(item)     {title, rows: [[label, text]]}
//   move(item, dx, dy)  the next item to the right, below, ...; item null: a first one

const RULER = 22;

class TimeView {
  constructor(owner, name, {end, left = 90, format = timeTick, least = 0, tools = true}) {
    const narrow = innerWidth < 600;
    left = owner.labelRoom ? Math.max(narrow ? 0 : left, owner.labelRoom()) : narrow ? Math.min(left, 54) : left;
    Object.assign(this, {owner, end, left, format, least, t0: 0, t1: end, item: null, hover: null, pointers: new Map(), partners: []});
    this.canvas = el('canvas', {tabindex: 0, role: 'application', 'aria-label': name, 'aria-roledescription': 'drawing over time'});
    this.canvas.view = this; // for who looks from the console
    this.room = el('div');
    this.plot = el('div', {class: 'plot'}, this.canvas, this.room);
    this.said = el('p', {class: 'said', 'aria-live': 'polite'});
    const button = (text, label, f) => el('button', {onclick: f, 'aria-label': label, title: label}, text);
    this.tools = el('div', {class: 'tools'}, tools && [button('−', 'zoom out', () => this.zoom(2)),
      button('+', 'zoom in', () => this.zoom(0.5)), button('All', 'show all', () => this.show(0, this.end))]);
    this.node = el('div', {}, this.tools, this.plot, this.said);
    for (const type of ['wheel', 'pointerdown', 'pointermove', 'pointerup', 'pointercancel', 'pointerleave', 'dblclick', 'keydown', 'blur'])
      this.canvas.addEventListener(type, e => this['on' + type](e), {passive: false});
    this.plot.addEventListener('scroll', () => this.redraw());
    new ResizeObserver(() => this.resize()).observe(this.plot);
    themeChanged.push(() => this.redraw());
  }

  // ---- what is shown
  resize() {
    const full = this.owner.height(), ratio = devicePixelRatio || 1;
    this.w = this.plot.clientWidth;
    this.h = Math.min(full, parseFloat(getComputedStyle(this.plot).maxHeight) || full);
    this.canvas.width = Math.round(this.w * ratio);
    this.canvas.height = Math.round(this.h * ratio);
    this.canvas.style.height = this.h + 'px';
    this.room.style.height = full - this.h + 'px';
    this.redraw();
  }
  redraw() {
    this.asked = this.asked || requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }
  draw() {
    if (!this.w) return;
    const ctx = this.canvas.getContext('2d'), ratio = this.canvas.width / this.w, {t0, t1, left, w, h} = this;
    const px = (t1 - t0) / (w - left), top = this.plot.scrollTop;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.bg;
    ctx.fillRect(0, 0, w, h);
    ctx.font = canvasFont();
    ctx.textBaseline = 'middle';
    ctx.translate(0, -top);
    this.owner.draw({ctx, w, left, t0, t1, px, top, bottom: top + h, x: t => left + (t - t0) / px, item: this.item, hover: this.hover});
    ctx.translate(0, top);
    this.ruler(ctx, t => left + (t - t0) / px);
  }
  ruler(ctx, x) {
    const {t0, t1, w, left} = this, step = Math.max(niceStep((t1 - t0) / Math.max((w - left) / 90, 1)), this.least);
    ctx.fillStyle = palette.bg;
    ctx.fillRect(0, 0, w, RULER);
    ctx.textAlign = 'left';
    for (let t = Math.ceil(t0 / step) * step; t <= t1; t += step) {
      ctx.fillStyle = palette.rule;
      ctx.fillRect(Math.round(x(t)), RULER - 7, 1, 7);
      ctx.fillStyle = palette.muted;
      if (x(t) < w - 36) ctx.fillText(this.format(t, step, t1), x(t) + 4, 9);
    }
    ctx.fillStyle = palette.rule;
    ctx.fillRect(0, RULER - 1, w, 1);
  }
  time(x) { return this.t0 + (x - this.left) / (this.w - this.left) * (this.t1 - this.t0); }
  at(e) { // the item under the pointer
    return e.offsetX < this.left ? null : this.owner.hit(this.time(e.offsetX), e.offsetY + this.plot.scrollTop, 3 * (this.t1 - this.t0) / this.w);
  }
  // Views of the same time move together.
  show(t0, t1, told) {
    const span = clamp(t1 - t0, Math.min(this.end, this.end / 1e6 + 10), this.end);
    this.t0 = clamp(t0, 0, this.end - span);
    this.t1 = this.t0 + span;
    this.redraw();
    if (!told) this.partners.forEach(p => p.show(t0, t1, true));
  }
  zoom(factor, at = this.item ? clamp((this.item.t0 + this.item.t1) / 2, this.t0, this.t1) : (this.t0 + this.t1) / 2) {
    this.show(at - (at - this.t0) * factor, at + (this.t1 - at) * factor);
  }
  pan(part) {
    const d = (this.t1 - this.t0) * part;
    this.show(this.t0 + d, this.t1 + d);
  }
  select(item) {
    const about = item && this.owner.about(item), half = (this.t1 - this.t0) / 2;
    this.item = item;
    this.said.textContent = about ? about.title + ' · ' + about.rows.map(r => r.join(' ')).join(' · ') : '';
    if (item && (item.t1 < this.t0 || item.t0 > this.t1)) this.show((item.t0 + item.t1) / 2 - half, (item.t0 + item.t1) / 2 + half);
    if (this.onselect) this.onselect(item);
    this.redraw();
  }

  // What the pointer would be told there, for who goes by the keyboard.
  explain(item) {
    if (!item) return hideTip();
    const box = this.canvas.getBoundingClientRect(), {t0, t1, left, w, h} = this, foot = this.owner.foot ? this.owner.foot(item) : RULER;
    showTip(this.owner.about(item), {clientX: box.left + clamp(left + (item.t0 - t0) / (t1 - t0) * (w - left), left, w),
      clientY: box.top + clamp(foot - this.plot.scrollTop, 0, h)});
  }

  // ---- pointer and keyboard
  // The page scrolls as ever until the drawing has the focus, or Ctrl (a pinch) says zoom.
  onwheel(e) {
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) this.pan((e.deltaX || e.deltaY) / this.w);
    else if (e.ctrlKey || e.metaKey || document.activeElement === this.canvas)
      this.zoom(Math.exp(clamp(e.deltaY, -60, 60) * (e.ctrlKey ? 0.01 : 0.004)), this.time(e.offsetX));
    else return;
    e.preventDefault();
  }
  onpointerdown(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, e.offsetX);
    this.grab(false, e.clientY);
  }
  grab(moved, y) {
    this.grip = {t0: this.t0, t1: this.t1, moved, y, top: this.plot.scrollTop, from: new Map(this.pointers)};
  }
  onpointermove(e) {
    if (!this.pointers.has(e.pointerId)) {
      this.hover = this.at(e);
      if (this.hover) showTip(this.owner.about(this.hover), e); else hideTip();
      return this.redraw();
    }
    this.pointers.set(e.pointerId, e.offsetX);
    const {grip} = this, ids = [...this.pointers.keys()], span = (grip.t1 - grip.t0) / (this.w - this.left);
    const was = ids.map(id => grip.from.get(id)), now = ids.map(id => this.pointers.get(id));
    if (!(grip.moved = grip.moved || ids.length > 1 || Math.abs(now[0] - was[0]) > 3)) return;
    hideTip();
    if (ids.length > 1) { // what was between the fingers stays there
      const scale = span * Math.abs(was[0] - was[1]) / Math.max(Math.abs(now[0] - now[1]), 8), mid = sum(now) / 2;
      const t0 = grip.t0 + (sum(was) / 2 - this.left) * span - (mid - this.left) * scale;
      this.show(t0, t0 + (this.w - this.left) * scale);
    } else {
      this.show(grip.t0 + (was[0] - now[0]) * span, grip.t1 + (was[0] - now[0]) * span);
      if (e.pointerType === 'mouse') this.plot.scrollTop = grip.top + grip.y - e.clientY;
    }
  }
  onpointerup(e) {
    this.pointers.delete(e.pointerId);
    if (this.pointers.size) this.grab(true, e.clientY);
    else if (e.type === 'pointerup' && !this.grip.moved) this.select(this.at(e));
  }
  onpointercancel(e) { this.onpointerup(e); }
  onpointerleave() { this.hover = null; hideTip(); this.redraw(); }
  ondblclick(e) { this.zoom(0.25, this.time(e.offsetX)); }
  onblur() { hideTip(); }
  onkeydown(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const {item, end} = this, step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[e.key];
    if (step && e.shiftKey) this.pan(step[0] / 4);
    else if (step) {
      this.select(this.owner.move(item, ...step) || item);
      this.explain(this.item);
    }
    else if ('+=w'.includes(e.key)) this.zoom(0.5);
    else if ('-s'.includes(e.key)) this.zoom(2);
    else if ('ad'.includes(e.key)) this.pan(e.key === 'a' ? -0.25 : 0.25);
    else if (e.key === 'Home' || e.key === '0') this.show(0, end);
    else if (e.key === 'Enter' && item) this.show(2 * item.t0 - item.t1, 2 * item.t1 - item.t0);
    else if (e.key === 'Escape' && item) {
      this.select(null);
      hideTip();
    }
    else return;
    e.preventDefault();
  }
}

const canvasFont = () => '11px ' + getComputedStyle(document.body).fontFamily;

function niceStep(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * [1, 2, 5, 10].find(k => k * power >= x * 0.999);
}
function keyHelp() {
  const k = text => el('kbd', {}, text);
  return el('p', {class: 'keys'}, 'In a drawing: click or focus, then wheel, ', k('+'), ' ', k('−'), ' zoom; drag, ', k('Shift'), ' ', k('←'), ' ', k('→'),
    ' move; arrows read; ', k('Enter'), ' zooms in on one; ', k('0'), ' shows all.');
}
function showTip({title, rows}, e) {
  const tip = document.getElementById('tip');
  tip.replaceChildren(el('b', {}, title), el('dl', {}, rows.map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)])));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), below = e.clientY + 18;
  tip.style.left = clamp(e.clientX + 14, 4, Math.max(innerWidth - box.width - 4, 4)) + 'px';
  tip.style.top = (below + box.height > innerHeight ? Math.max(e.clientY - box.height - 12, 4) : below) + 'px';
}
function hideTip() { document.getElementById('tip').hidden = true; }
