// Making and filling elements. Text goes in as text only: uids come from strangers.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function dressed(node, attributes, children) {
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
  return dressed(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, tag), attributes, children);
}

/** Set an element's text, and touch the document only if that changes it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/** Text of strangers, kept from turning around the text beside it. */
export function stranger(text) {
  return element("bdi", {}, text);
}

/** A bar filled to `part` of it, 0 to 1; `tone` colours it. */
export function bar(part, tone = "") {
  const fill = element("span", { class: "bar-fill" });
  const node = element("span", { class: "bar", "aria-hidden": "true" }, fill);
  setBar(node, part, tone);
  return node;
}

export function setBar(node, part, tone = "") {
  const within = Math.max(0, Math.min(1, Number.isFinite(part) ? part : 0));
  node.firstElementChild.style.setProperty("inline-size", `${(within * 100).toFixed(1)}%`);
  if (node.dataset.tone !== tone) node.dataset.tone = tone;
}

/**
 * Bring the children of `parent` in step with `items`: one per key, made once, then brought up to date.
 * So what is focused, hovered or selected stays.
 */
export function keep(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = known.get(key);
    if (node === undefined) {
      node = make(item);
      node.dataset.key = key;
    }
    known.delete(key);
    update(node, item);
    const place = before === null ? parent.firstElementChild : before.nextElementSibling;
    if (place !== node) parent.insertBefore(node, place);
    before = node;
  }
  for (const gone of known.values()) gone.remove();
}

/** A colour of the style sheet, as the theme of the moment has it. */
export function colour(name) {
  const probe = byId("colour-probe");
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
