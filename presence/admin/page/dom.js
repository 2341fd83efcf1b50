// Creates and fills elements. Text is only ever set as text, because uids come from untrusted clients.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function withContent(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A new element; children are elements or text. */
export function element(tag, attributes = {}, ...children) {
  return withContent(document.createElement(tag), attributes, children);
}

export function svgElement(tag, attributes = {}, ...children) {
  return withContent(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an element's text; changes the document only if the text differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setVisible(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Text of clients, isolated so that it cannot reverse the direction of the text beside it. */
export function isolated(text) {
  return element("bdi", {}, text);
}

/** A bar filled to a fraction, 0 to 1; `tone` colours it. */
export function bar(fraction, tone = "") {
  const fill = element("span", { class: "bar-fill" });
  const node = element("span", { class: "bar", "aria-hidden": "true" }, fill);
  setBar(node, fraction, tone);
  return node;
}

export function setBar(node, fraction, tone = "") {
  const within = Math.max(0, Math.min(1, Number.isFinite(fraction) ? fraction : 0));
  node.firstElementChild.style.setProperty("inline-size", `${(within * 100).toFixed(1)}%`);
  if (node.dataset.tone !== tone) node.dataset.tone = tone;
}

/**
 * Make the children of `parent` match `items`: one per key, created once, then updated. So the focus, the
 * hovered element and the selection stay.
 */
export function syncChildren(parent, items, keyOf, make, update) {
  const stale = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let previous = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = stale.get(key);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = key;
    }
    stale.delete(key);
    update(node, item);
    const next = previous === null ? parent.firstElementChild : previous.nextElementSibling;
    if (next !== node) parent.insertBefore(node, next);
    previous = node;
  }
  for (const node of stale.values()) node.remove();
}

/** A colour of the style sheet in the present theme. */
export function themeColour(name) {
  const probe = byId("colour-probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
