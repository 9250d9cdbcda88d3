// Elements, tables that are updated in place, dialogs, and how figures are written. All text is set as text,
// never as HTML.

export function el(name, properties = {}, ...children) {
  const element = document.createElement(name)
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value)
    else if (key === "class") element.className = value
    else if (key in element && key !== "list" && typeof value !== "string") element[key] = value
    else element.setAttribute(key, value === true ? "" : value)
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false))
  return element
}

export const link = (text, ...path) => el("a", { href: to(...path) }, text)
export const to = (...path) => `#/${path.map(encodeURIComponent).join("/")}`

// ---- Figures

export const count = value => value === null || value === undefined ? "–" : value.toLocaleString("en")
export const number = value => value === 0 ? el("span", { class: "zero" }, "0") : count(value)
export function rate(value) {
  if (value === null || value === undefined) return "–"
  if (value === 0) return el("span", { class: "zero" }, "0/s")
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")}/s`
}
export function bytes(value) {
  if (value === null || value === undefined) return "–"
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${unit === "B" || value >= 100 ? Math.round(value) : value.toFixed(1)} ${unit}`
    value /= 1024
  }
  return `${value.toFixed(1)} TiB`
}
export function span(ms) {
  if (ms === null || ms === undefined) return "–"
  const s = Math.max(0, ms) / 1000
  if (s < 1) return `${Math.round(ms)} ms`
  if (s < 100) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`
  if (s < 6000) return `${Math.round(s / 60)} min`
  return s < 200_000 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} days`
}
export function time(value) {
  if (value === null || value === undefined) return "–"
  const date = new Date(value), pad = (part, size = 2) => String(part).padStart(size, "0")
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`
}
export const ago = value => value === null || value === undefined ? "–" : `${span(Date.now() - new Date(value))} ago`

const STATES = {
  good: ["running", "stable", "connected", "committed", "completecommit"],
  warn: ["waiting", "held up", "lost", "ongoing", "preparing rebalancing", "completing rebalancing", "assigning", "reconciling", "prepare commit", "prepareabort"],
  bad: ["failed", "dead", "offline", "under-replicated"],
}
export const toneOf = state => Object.keys(STATES).find(tone => STATES[tone].includes(String(state).toLowerCase())) ?? ""
export const badge = (state, tone = toneOf(state)) => el("span", { class: `badge ${tone}` }, state)

// The rate of a counter, from what its documents said in the last seconds.
export class Rates {
  #samples = new Map()
  note(key, value) {
    const now = performance.now() / 1000, samples = this.#samples.get(key) ?? []
    if (samples.length && value < samples.at(-1)[1]) samples.length = 0
    samples.push([now, value])
    while (samples.length > 2 && samples[1][0] < now - 8) samples.shift()
    this.#samples.set(key, samples)
    const [begin, before] = samples[0]
    return now - begin < 0.5 ? null : (value - before) / (now - begin)
  }
}

// ---- Tables

// columns: { title, cell(row) -> text or nodes, class, sort(row) }. Rows are patched by key, so that nothing
// flickers, and what has the focus keeps it.
export class Table {
  #columns; #key; #rows = new Map(); #body; #sort = null; #last = []; #empty; #opened = new Map()
  constructor(columns, { key, empty, detail, label }) {
    this.#columns = columns; this.#key = key; this.#empty = empty; this.detail = detail
    const heads = columns.map((column, index) => {
      const title = column.sort ? el("button", { onclick: () => this.#sortBy(index) }, column.title) : column.title
      return el("th", { class: column.class ?? "", scope: "col" }, title)
    })
    this.#body = el("tbody")
    this.heads = heads
    this.table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, heads)), this.#body)
    this.node = el("div", { class: "table", tabindex: null }, this.table)
  }
  #sortBy(index) {
    const down = this.#sort?.index === index ? !this.#sort.down : Boolean(this.#columns[index].class?.includes("number"))
    this.#sort = { index, down }
    this.heads.forEach((head, at) => at === index ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"))
    this.update(this.#last)
  }
  update(rows) {
    this.#last = rows
    if (this.#sort) {
      const value = this.#columns[this.#sort.index].sort, sign = this.#sort.down ? -1 : 1
      rows = [...rows].sort((a, b) => { const [x, y] = [value(a), value(b)]; return x === y ? 0 : sign * (x > y ? 1 : -1) })
    }
    if (!rows.length) {
      this.#rows.clear()
      const shown = typeof this.#empty === "function" ? this.#empty() : this.#empty
      this.table.hidden = true
      this.node.querySelector(".empty")?.remove()
      this.node.append(shown)
      this.#body.replaceChildren()
      return
    }
    this.table.hidden = false
    this.node.querySelector(".empty")?.remove()
    const left = new Map(this.#rows)
    let before = null
    for (const row of rows) {
      const key = String(this.#key(row))
      left.delete(key)
      let held = this.#rows.get(key)
      if (!held) this.#rows.set(key, held = { line: el("tr"), texts: [] })
      this.#fill(held, row)
      const expected = before === null ? this.#body.firstChild : before.nextSibling
      if (held.line !== expected) this.#body.insertBefore(held.line, expected)
      before = held.line
      const detail = this.#opened.get(key)
      if (detail) { if (detail !== before.nextSibling) this.#body.insertBefore(detail, before.nextSibling); before = detail }
    }
    for (const [key, held] of left) { held.line.remove(); this.#opened.get(key)?.remove(); this.#opened.delete(key); this.#rows.delete(key) }
  }
  #fill(held, row) {
    const cells = this.#columns.map(column => [column.cell(row)].flat(Infinity).filter(part => part !== null && part !== undefined && part !== false))
    const texts = cells.map(parts => parts.map(part => part.outerHTML ?? String(part)).join("\u0000"))
    cells.forEach((parts, at) => {
      if (texts[at] === held.texts[at]) return
      const column = this.#columns[at], old = held.line.children[at], focused = old?.contains(document.activeElement)
      const cell = el(at === 0 ? "td" : "td", { class: column.class ?? "" }, parts)
      if (column.class?.includes("one")) cell.title = cell.textContent
      old ? old.replaceWith(cell) : held.line.append(cell)
      if (focused) cell.querySelector("a, button")?.focus()
    })
    held.texts = texts
    if (this.detail && !held.line.onclick) {
      held.line.style.cursor = "pointer"
      held.line.onclick = event => { if (!event.target.closest("a, input")) this.toggle(held.line, row) }
    }
  }
  toggle(line, row) {
    const key = String(this.#key(row)), open = this.#opened.get(key)
    line.querySelector("button[aria-expanded]")?.setAttribute("aria-expanded", String(!open))
    if (open) { open.remove(); this.#opened.delete(key); return }
    const made = el("tr", { class: "detail" }, el("td", { colspan: String(this.#columns.length) }, this.detail(row)))
    line.after(made)
    this.#opened.set(key, made)
  }
}

export const empty = (title, ...what) => el("div", { class: "empty" }, el("b", {}, title), ...what)
export const code = text => el("code", {}, text)

// ---- Dialogs and messages

// fields: { name, label, kind, value, options, required, hint }. `send(values)` returns a text, or throws.
export function ask({ title, about = [], fields = [], button, danger = false, send, check }) {
  const inputs = new Map(), problem = el("div", { class: "problem", hidden: true })
  const rows = fields.map(({ name, label, kind = "text", value = "", options, rows = 6, placeholder, required }) => {
    const input = kind === "select" ? el("select", { name }, options.map(([key, text]) => el("option", { value: key }, text)))
      : kind === "textarea" ? el("textarea", { name, rows: String(rows), placeholder, spellcheck: "false" }) : el("input", { name, type: kind, placeholder, required, autocomplete: "off", spellcheck: "false" })
    input.value = value
    inputs.set(name, input)
    return el("label", {}, label, input)
  })
  const ok = el("button", { class: danger ? "main danger" : "main", type: "submit" }, button)
  const values = () => Object.fromEntries([...inputs].map(([name, input]) => [name, input.value]))
  const form = el("form", { method: "dialog", onsubmit: async event => {
    event.preventDefault()
    if (ok.disabled) return
    ok.disabled = true
    problem.hidden = true
    try {
      const text = await send(values())
      dialog.close()
      if (text) toast(text)
    } catch (fault) { problem.textContent = fault.message; problem.hidden = false } finally { ok.disabled = check ? !check(values()) : false }
  } }, el("h2", {}, title), about.map(part => part instanceof Node ? part : el("p", {}, part)), problem, rows,
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), ok))
  const dialog = el("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form)
  form.addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit() })
  if (check) { ok.disabled = !check(values()); form.addEventListener("input", () => { ok.disabled = !check(values()) }) }
  document.body.append(dialog)
  dialog.showModal()
  return dialog
}

export function toast(text, bad = false) {
  const message = el("div", { class: bad ? "bad" : "" }, text)
  document.querySelector("#toast").append(message)
  setTimeout(() => message.remove(), bad ? 9000 : 4500)
}

export function tiles(place, figures) {
  // figures: [label, value, tone]
  figures = figures.filter(Boolean)
  while (place.children.length > figures.length) place.lastChild.remove()
  figures.forEach(([label, value, tone = ""], at) => {
    const text = value instanceof Node ? value.textContent : String(value)
    let tile = place.children[at]
    if (!tile) place.append(tile = el("div", { class: "tile" }, el("span"), el("b")))
    const [name, figure] = tile.children
    if (name.textContent !== label) name.textContent = label
    if (figure.textContent !== text) { figure.textContent = text; figure.title = text }
    figure.className = text.length > 12 ? "small" : ""
    tile.className = `tile ${tone}`
  })
}
