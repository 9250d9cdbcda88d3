// Views: the catalog, and the live rows of one.

import { read } from "./api.js"
import { code, count, el, empty, link, Table, tiles, toast } from "./dom.js"

const SHOWN = 500

export function views({ main, live }) {
  const table = new Table([
    { title: "View", class: "wrap", cell: row => link(row.view, "views", row.view), sort: row => row.view },
    { title: "Key", cell: row => row.key.join(", ") },
    { title: "Columns", class: "wrap", cell: row => row.columns.map(each => each.name).join(", ") },
    { title: "Job", class: "wrap", cell: row => link(row.job, "jobs", row.job), sort: row => row.job },
  ], { label: "Views", key: row => row.view, empty: empty("There are no views yet", "A job writes one: ", code('@app.job(into=app.view("revenue", key="product"))')) })
  main.append(el("div", { class: "head" }, el("h1", {}, "Views")), table.node)
  live("/api/views", {}, document => table.update(document.views))
}

export async function view({ main, item, atEnd, fail }) {
  const filter = el("input", { type: "search", name: "filter", placeholder: "Text in a row", "aria-label": "Filter rows" }), figures = el("div", { class: "tiles" }), place = el("div")
  main.append(el("div", { class: "head" }, el("div", { class: "crumb" }, link("Views", "views")), el("h1", {}, item)), figures, el("div", { class: "bar" }, el("div", { class: "grow" }, filter)), place)
  const known = (await read("/api/views")).views.find(each => each.view === item)
  if (!known) throw new Error(`There is no view ${item}. A view exists once its job has started.`)
  const rows = new Map(), text = value => value === null || value === undefined ? el("span", { class: "soft" }, "null") : typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 6 }) : String(value)
  const columns = [...known.columns].sort((a, b) => known.key.includes(b.name) - known.key.includes(a.name))
  const isNumber = type => ["long", "integer", "double", "float", "short", "byte"].includes(type) || type.startsWith("decimal")
  const table = new Table(columns.map(({ name, type }) => ({ title: known.key.includes(name) ? `${name} (key)` : name, class: isNumber(type) ? "number" : "one", cell: ({ row }) => text(row[name]), sort: ({ row }) => row[name] ?? "" })),
    { label: `Rows of ${item}`, key: ({ id }) => id, empty: () => filter.value ? empty("No row has this text") : empty("The view is empty", "Rows appear when its job writes them.") })
  place.append(table.node)
  let changes = 0, pending = false
  const update = () => {
    pending = false
    const wanted = filter.value.toLowerCase(), shown = []
    for (const [id, row] of rows) { if (!wanted || id.toLowerCase().includes(wanted) || JSON.stringify(row).toLowerCase().includes(wanted)) shown.push({ id, row }); if (shown.length === SHOWN) break }
    table.update(shown)
    tiles(figures, [["Rows", count(rows.size)], ["Shown", count(shown.length)], ["Changes since opened", count(changes)], ["Key", known.key.join(", ")], ["Job", known.job], ["Topic", known.topic]])
  }
  const later = () => { if (!pending) { pending = true; requestAnimationFrame(update) } }
  filter.addEventListener("input", later)
  later()
  let source
  const open = () => {
    source = new EventSource(`/changes/${encodeURIComponent(item)}`)
    for (const kind of ["row", "upsert", "delete"]) source.addEventListener(kind, event => {
      const { key, row } = JSON.parse(event.data), id = JSON.stringify(key)
      row === null ? rows.delete(id) : rows.set(id, row)
      if (kind !== "row") changes++
      later()
    })
    source.addEventListener("end", event => toast(JSON.parse(event.data).error, true))
    source.addEventListener("open", () => fail(null))
    source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) { rows.clear(); timer = setTimeout(open, 2000) } })
  }
  let timer
  open()
  atEnd(() => { clearTimeout(timer); source.close() })
}
