"use strict";
// The map of the features: two canvases that show the same pictures at two places each.
(() => {
  const root = document.getElementById("map");
  if (!root) return;
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const sheets = [...root.querySelectorAll(".sheet")];
  const legend = root.querySelector(".map-legend");
  const tip = root.querySelector(".tip");
  const pinnedBox = root.querySelector(".pinned");
  const help = root.querySelector(".help");
  const announce = root.querySelector(".announce");
  const PAD = 18, RADIUS = 3.4, REACH = 24, COLOURS = 10;
  const SMALLEST = 18, LARGEST = 28, OVERLAP = 0.8; // pixels of a picture on the map, and how near two may lie

  // What is shown: a picture is {set, index}; `run` is the view whose neighbours count.
  const state = { hover: null, pinned: null, hoverClass: -1, pinnedClass: -1 };
  let colours = {};

  const panes = [...root.querySelectorAll(".pane")].map((element, side) => ({
    element,
    canvas: element.querySelector("canvas"),
    base: document.createElement("canvas"), // all pictures; the marks of a moment are drawn over a copy
    title: element.querySelector(".pane-title"),
    view: data.views[Number(side ? root.dataset.right : root.dataset.left)],
    side: 0,
  }));

  const viewName = (view) => {
    const when = view.when === "before" ? "before training" : "after training";
    return new Set(data.views.map((other) => other.run)).size > 1 ? view.run + ", " + when : when;
  };
  const className = (set, index) => data.classes[data.sets[set].labels[index]] ?? "";
  const describe = (set, index) => [className(set, index), data.sets[set].names[index]].filter(Boolean).join(", ") || "picture " + (index + 1);

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    colours = { ink: get("--ink"), card: get("--card"), soft: get("--soft"), good: get("--good"), one: get("--c1") };
    colours.classes = Array.from({ length: COLOURS }, (_, index) => get("--c" + index));
  }

  // Colour and shape together name a class: up to 100 differ.
  const colourOf = (label) => (label < 0 ? colours.one : colours.classes[label % COLOURS]);
  const shapeOf = (label) => (label < 0 ? 0 : (label + Math.floor(label / COLOURS)) % 10);

  function polygon(context, x, y, radius, corners, turn, inner) {
    const num = inner ? corners * 2 : corners;
    for (let corner = 0; corner < num; corner++) {
      const reach = inner && corner % 2 ? radius * inner : radius;
      const angle = turn + (corner * 2 * Math.PI) / num;
      context.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
    }
    context.closePath();
  }

  function marker(context, label, x, y, radius) {
    const shape = shapeOf(label);
    const up = -Math.PI / 2;
    context.fillStyle = context.strokeStyle = colourOf(label);
    context.lineWidth = radius * 0.62;
    context.beginPath();
    if (shape === 0) context.arc(x, y, radius, 0, 2 * Math.PI);
    else if (shape === 1) polygon(context, x, y, radius * 1.25, 4, Math.PI / 4);
    else if (shape === 2) polygon(context, x, y, radius * 1.35, 3, up);
    else if (shape === 3) polygon(context, x, y, radius * 1.35, 4, 0);
    else if (shape === 4) polygon(context, x, y, radius * 1.35, 3, -up);
    else if (shape === 7) polygon(context, x, y, radius * 1.55, 5, up, 0.45);
    else if (shape === 8) polygon(context, x, y, radius * 1.2, 5, up);
    else if (shape === 9) {
      context.arc(x, y, radius * 0.9, 0, 2 * Math.PI);
      context.stroke();
      return;
    } else {
      const [dx, dy] = shape === 5 ? [radius * 1.2, 0] : [radius * 0.9, radius * 0.9];
      context.moveTo(x - dx, y - dy);
      context.lineTo(x + dx, y + dy);
      context.moveTo(x - dy, y + dx);
      context.lineTo(x + dy, y - dx);
      context.stroke();
      return;
    }
    context.fill();
  }

  function place(pane, index) {
    const room = pane.side - 2 * PAD;
    return [PAD + (pane.view.x[index] / data.grid) * room, pane.side - PAD - (pane.view.y[index] / data.grid) * room];
  }

  function crop(set, index) {
    const canvas = document.createElement("canvas");
    const { size, step, columns } = data.sets[set].sheet;
    canvas.width = canvas.height = size;
    canvas.className = "crop";
    const [x, y] = [(index % columns) * step, Math.floor(index / columns) * step];
    canvas.getContext("2d").drawImage(sheets[set], x, y, size, size, 0, 0, size, size);
    return canvas;
  }

  // Those of the pictures, in this order, that can be shown without one hiding much of another.
  function spaced(pane, order, size) {
    const cells = new Map(), kept = new Set();
    for (const index of order) {
      const [x, y] = place(pane, index);
      const [column, row] = [Math.floor(x / size), Math.floor(y / size)];
      const around = [-1, 0, 1].flatMap((across) => [-1, 0, 1].map((down) => cells.get(column + across + "," + (row + down))));
      if (around.some((other) => other && Math.max(Math.abs(other[0] - x), Math.abs(other[1] - y)) < size)) continue;
      cells.set(column + "," + row, [x, y]);
      kept.add(index);
    }
    return kept;
  }

  function drawPicture(context, set, index, x, y, size) {
    const { size: side, step, columns } = data.sets[set].sheet;
    const label = data.sets[set].labels[index];
    const [left, top] = [(index % columns) * step, Math.floor(index / columns) * step];
    const frame = label < 0 ? 0 : 2; // its class's colour
    context.fillStyle = label < 0 ? colours.card : colourOf(label);
    context.fillRect(x - size / 2, y - size / 2, size, size);
    const inner = size - 2 * frame - 1;
    context.drawImage(sheets[set], left, top, side, side, x - inner / 2, y - inner / 2, inner, inner);
  }

  function drawBase(pane) {
    pane.side = pane.canvas.clientWidth;
    if (!pane.side) return; // it is not on the screen
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [pane.canvas, pane.base]) canvas.width = canvas.height = Math.round(pane.side * scale);
    const context = pane.base.getContext("2d");
    context.scale(scale, scale);
    const chosen = state.hoverClass >= 0 ? state.hoverClass : state.pinnedClass;
    const labels = data.sets[pane.view.set].labels;
    const radius = RADIUS * Math.min(1.2, Math.max(0.8, pane.side / 480));
    const size = Math.min(LARGEST, Math.max(SMALLEST, pane.side / 20));
    const isBright = (index) => chosen < 0 || labels[index] === chosen;
    const all = [...labels.keys()];
    const order = [...all.filter(isBright), ...all.filter((index) => !isBright(index))];
    const shown = spaced(pane, order, size * OVERLAP);
    for (const index of order.reverse().sort((one, other) => shown.has(one) - shown.has(other))) {
      const strong = shown.has(index) ? 1 : labels[index] < 0 ? 0.3 : 0.85; // without a class, a dot says little
      context.globalAlpha = isBright(index) ? strong : 0.13;
      if (shown.has(index)) drawPicture(context, pane.view.set, index, ...place(pane, index), size);
      else marker(context, labels[index], ...place(pane, index), radius);
    }
    drawMarks(pane);
  }

  function ring(context, x, y, radius, width, colour) {
    for (const [stroke, extra] of [[colours.card, 2.5], [colour, 0]]) {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.strokeStyle = stroke;
      context.lineWidth = width + extra;
      context.stroke();
    }
  }

  function drawMarks(pane) {
    const context = pane.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, pane.canvas.width, pane.canvas.height);
    context.drawImage(pane.base, 0, 0);
    context.scale(scale, scale);
    const labels = data.sets[pane.view.set].labels;
    const { pinned, hover } = state;
    if (pinned && pinned.set === pane.view.set) {
      const [x, y] = place(pane, pinned.index);
      for (const other of data.neighbours[pinned.view.neighbours][pinned.index]) {
        const [otherX, otherY] = place(pane, other);
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(otherX, otherY);
        context.strokeStyle = colours.ink;
        context.globalAlpha = 0.55;
        context.lineWidth = 1;
        context.stroke();
        context.globalAlpha = 1;
        marker(context, labels[other], otherX, otherY, RADIUS * 1.5);
      }
      marker(context, labels[pinned.index], x, y, RADIUS * 1.6);
      ring(context, x, y, 9, 2.5, colours.ink);
    }
    if (hover && hover.set === pane.view.set) {
      const [x, y] = place(pane, hover.index);
      marker(context, labels[hover.index], x, y, RADIUS * 1.6);
      ring(context, x, y, 9, 2, colours.ink);
      if (hover.pane !== pane) thumbnail(pane, context, hover, x, y);
    }
  }

  // In the other map the picture itself shows where it went.
  function thumbnail(pane, context, { set, index }, x, y) {
    const size = 44;
    const left = x + 14 + size > pane.side ? x - 14 - size : x + 14;
    const top = Math.min(Math.max(4, y - size / 2), pane.side - size - 4);
    context.imageSmoothingEnabled = false;
    context.fillStyle = colours.card;
    context.fillRect(left - 2, top - 2, size + 4, size + 4);
    context.drawImage(crop(set, index), left, top, size, size);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1;
    context.strokeRect(left - 2, top - 2, size + 4, size + 4);
  }

  const drawAll = () => panes.forEach(drawBase);
  const markAll = () => panes.forEach(drawMarks);

  function nearest(pane, x, y) {
    let best = -1, distance = REACH * REACH;
    for (let index = 0; index < pane.view.x.length; index++) {
      const [px, py] = place(pane, index);
      const squared = (px - x) ** 2 + (py - y) ** 2;
      if (squared < distance) [best, distance] = [index, squared];
    }
    return best;
  }

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function hover(pane, index) {
    if (index < 0) {
      if (!state.hover) return;
      state.hover = null;
      tip.hidden = true;
      return markAll();
    }
    const set = pane.view.set;
    if (state.hover && state.hover.pane === pane && state.hover.index === index) return;
    state.hover = { pane, set, index };
    tip.replaceChildren(crop(set, index));
    if (className(set, index)) tip.append(element("b", className(set, index)));
    if (data.sets[set].names[index]) tip.append(element("small", data.sets[set].names[index]));
    tip.hidden = false;
    const [x, y] = place(pane, index);
    const [outer, inner] = [root.getBoundingClientRect(), pane.canvas.getBoundingClientRect()];
    const [left, top] = [inner.left - outer.left + x, inner.top - outer.top + y];
    const fits = left + 18 + tip.offsetWidth < outer.width - 8;
    tip.style.left = Math.max(8, fits ? left + 18 : left - 18 - tip.offsetWidth) + "px";
    tip.style.top = Math.max(8, top - tip.offsetHeight / 2) + "px";
    markAll();
  }

  function pin(pane, index) {
    state.pinned = index < 0 ? null : { pane, set: pane.view.set, index, view: pane.view };
    showPinned();
    markAll();
  }

  function showPinned() {
    pinnedBox.hidden = !state.pinned;
    help.hidden = Boolean(state.pinned);
    pinnedBox.replaceChildren();
    if (!state.pinned) return;
    const { pane, set, index, view } = state.pinned;
    const labels = data.sets[set].labels;
    const chosen = element("div", "", "chosen");
    const words = element("div");
    words.append(element("b", className(set, index) || "picture " + (index + 1)));
    if (data.sets[set].names[index]) words.append(element("small", data.sets[set].names[index]));
    chosen.append(crop(set, index), words);
    const near = element("div", "", "near");
    const others = data.neighbours[view.neighbours][index].filter((other) => other >= 0 && other !== index);
    const known = labels[index] >= 0;
    const right = others.filter((other) => labels[other] === labels[index]).length;
    const whose = data.views.some((other) => other.run !== view.run) ? " (" + view.run + ")" : "";
    const count = known ? ": " + right + " of " + others.length + " of the same class" : "";
    near.append(element("span", "Nearest neighbours after training" + whose + count));
    const row = element("div", "", "row");
    for (const other of others) {
      const same = labels[other] === labels[index];
      const button = element("button", "", known && labels[other] >= 0 ? (same ? "same" : "other") : "");
      button.type = "button";
      const sign = button.className ? (same ? "✓ " : "✗ ") : "";
      button.append(crop(set, other), element("span", sign + className(set, other)));
      button.title = describe(set, other);
      button.setAttribute("aria-label", (sign ? (same ? "right: " : "wrong: ") : "") + describe(set, other));
      button.addEventListener("click", () => pin(pane, other));
      row.append(button);
    }
    near.append(row);
    const close = element("button", "let go", "close");
    close.type = "button";
    close.addEventListener("click", () => pin(pane, -1));
    pinnedBox.append(chosen, near, close);
    announce.textContent = describe(set, index) + ", kept" + (known ? ". Of its neighbours" + count : "") + ".";
  }

  // The nearest point in the arrow's direction; what lies aside counts as further away.
  function walk(pane, key) {
    const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
    const from = [state.hover, state.pinned].find((one) => one && one.set === pane.view.set);
    const [x, y] = from ? place(pane, from.index) : [pane.side / 2, pane.side / 2];
    let best = -1, least = Infinity;
    for (let index = 0; index < pane.view.x.length; index++) {
      const [px, py] = place(pane, index);
      const ahead = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (ahead > 0.5 && aside <= 2 * ahead && ahead + 2 * aside < least) [best, least] = [index, ahead + 2 * aside];
    }
    if (best < 0) return;
    hover(pane, best);
    announce.textContent = describe(pane.view.set, best);
  }

  function listen(pane) {
    const at = (event) => {
      const box = pane.canvas.getBoundingClientRect();
      return nearest(pane, event.clientX - box.left, event.clientY - box.top);
    };
    pane.canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && hover(pane, at(event)));
    pane.canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hover(pane, -1));
    pane.canvas.addEventListener("click", (event) => {
      const index = at(event);
      hover(pane, index);
      pin(pane, index);
    });
    pane.canvas.addEventListener("keydown", (event) => {
      if (event.key.startsWith("Arrow")) walk(pane, event.key);
      else if ((event.key === "Enter" || event.key === " ") && state.hover) pin(pane, state.hover.index);
      else if (event.key === "Escape") {
        hover(pane, -1);
        pin(pane, -1);
      } else return;
      event.preventDefault();
    });
    pane.canvas.addEventListener("blur", () => hover(pane, -1));
  }

  function title(pane) {
    pane.canvas.setAttribute("aria-label", "Map of the features, " + viewName(pane.view));
    if (data.views.length < 3) {
      pane.title.textContent = viewName(pane.view);
      return;
    }
    const select = element("select");
    select.setAttribute("aria-label", "Which map to show here");
    data.views.forEach((view, index) => {
      const option = element("option", viewName(view));
      option.value = index;
      option.selected = view === pane.view;
      select.append(option);
    });
    select.addEventListener("change", () => {
      pane.view = data.views[Number(select.value)];
      pane.canvas.setAttribute("aria-label", "Map of the features, " + viewName(pane.view));
      hover(pane, -1);
      pin(pane, -1);
      drawLegend();
      drawAll();
    });
    pane.title.replaceChildren(select);
  }

  function drawLegend() {
    const counts = new Map();
    for (const set of new Set(panes.map((pane) => pane.view.set)))
      for (const label of data.sets[set].labels) if (label >= 0) counts.set(label, (counts.get(label) || 0) + 1);
    legend.replaceChildren();
    legend.hidden = !counts.size;
    for (const label of [...counts.keys()].sort((one, other) => one - other)) {
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(label === state.pinnedClass));
      const sign = document.createElement("canvas");
      const scale = window.devicePixelRatio || 1;
      sign.width = sign.height = 14 * scale;
      const context = sign.getContext("2d");
      context.scale(scale, scale);
      marker(context, label, 7, 7, 4.2);
      button.append(sign, element("span", data.classes[label]), element("small", String(counts.get(label))));
      button.title = data.classes[label];
      const light = (chosen) => {
        state.hoverClass = chosen;
        drawAll();
      };
      button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(label));
      button.addEventListener("pointerleave", () => light(-1));
      button.addEventListener("focus", () => button.matches(":focus-visible") && light(label));
      button.addEventListener("blur", () => light(-1));
      button.addEventListener("click", () => {
        state.pinnedClass = state.pinnedClass === label ? -1 : label;
        for (const other of legend.children) other.setAttribute("aria-pressed", String(other === button && state.pinnedClass === label));
        drawAll();
      });
      legend.append(button);
    }
  }

  function redraw() {
    readColours();
    drawLegend();
    drawAll();
  }

  // For a test, or a curious reader's console: where on the screen a picture lies.
  root.positionOf = (side, index) => {
    const box = panes[side].canvas.getBoundingClientRect();
    const [x, y] = place(panes[side], index);
    return [box.left + x, box.top + y];
  };

  Promise.all(sheets.map((sheet) => sheet.decode())).then(() => {
    panes.forEach(title);
    panes.forEach(listen);
    redraw();
    new ResizeObserver(drawAll).observe(panes[0].canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    root.dataset.ready = "yes";
  });
})();
