// Aggregates: their events, and their state at any version.

import { api, read } from "./api.js"
import { code, count, el, empty, link, number, Table, time, to } from "./dom.js"

export function aggregates({ main, live }) {
  const table = new Table([
    { title: "Aggregate", class: "wrap", cell: row => link(row.aggregate, "aggregates", row.aggregate) },
    { title: "Events", class: "number", cell: row => number(row.events) }, { title: "Partitions", class: "number", cell: row => count(row.partitions) },
  ], { label: "Aggregates", key: row => row.aggregate, empty: empty("There are no aggregates yet", "An event store writes them: ", code('store = EventStore("shop")')) })
  main.append(el("div", { class: "head" }, el("h1", {}, "Aggregates")), table.node)
  live("/api/aggregates", {}, document => table.update(document.aggregates))
}

export async function aggregate({ main, item, query, live, fail }) {
  const id = query.get("id"), field = el("input", { type: "search", name: "filter", placeholder: "Id of an aggregate, such as cart-17", value: id ?? "" })
  const open = wanted => { location.hash = `${to("aggregates", item).slice(1)}${wanted ? `?id=${encodeURIComponent(wanted)}` : ""}` }
  const columns = [
    { title: "Version", class: "number", cell: row => count(row.version) }, { title: "Event", cell: row => row.type }, { title: "Time", class: "mono", cell: row => time(row.time) },
    { title: "Fields", class: "mono wrap", cell: row => JSON.stringify(row.fields) }, { title: "Actor", cell: row => row.actor ?? "" },
  ]
  main.append(el("div", { class: "head" }, el("div", { class: "crumb" }, link("Aggregates", "aggregates"), id && [" / ", link(item, "aggregates", item)]), el("h1", {}, id ?? item)),
    el("form", { class: "bar", onsubmit: event => { event.preventDefault(); open(field.value.trim()) } }, el("div", { class: "grow" }, field), el("button", {}, "Show")))
  if (!id) {
    const table = new Table([{ title: "Id", class: "mono", cell: row => el("a", { href: `${to("aggregates", item)}?id=${encodeURIComponent(row.id)}` }, row.id) }, ...columns], { label: "Newest events", key: row => `${row.id}/${row.version}`, empty: empty("There are no events yet") })
    main.append(el("section", {}, el("h2", {}, "Newest events"), table.node))
    live(api("aggregates", item, "events"), { limit: 100 }, document => table.update(document.events))
    return
  }
  const table = new Table([...columns.slice(0, 3), { title: "Changes", class: "mono wrap", cell: row => row.changes?.map(([path, before, after]) => el("div", {}, `${path}: ${JSON.stringify(before)} → `, el("b", {}, JSON.stringify(after)))) ?? JSON.stringify(row.fields) }, columns[4],
    { title: "", cell: row => row.changes && el("button", { class: "quiet", onclick: () => choose(row.version) }, "State here") }], { label: `Events of ${id}`, key: row => row.version, empty: empty("There are no events with this id", "Ids are compared as they are, with upper and lower case.") })
  const state = el("section"), events = el("section", {}, el("h2", {}, "Events"), table.node)
  main.append(el("div", { class: "columns" }, state, events))
  let chosen = query.get("version")
  async function choose(version) { chosen = version; await show() }
  async function show() {
    try {
      const found = await read(api("aggregates", item, "state"), { id, version: chosen })
      const slider = el("input", { type: "range", min: "0", max: String(found.newest), value: String(found.version), "aria-label": "Version", style: "padding:0;border:0", onchange: event => choose(Number(event.target.value)) })
      state.replaceChildren(el("h2", {}, found.version === found.newest ? `State now, version ${found.version}` : `State at version ${found.version} of ${found.newest}`), slider, el("div", { class: "panel" }, el("pre", {}, JSON.stringify(found.state, null, 2))))
      table.update(found.steps.reverse())
      fail(null)
    } catch (fault) {
      if (fault.status !== 409) throw fault
      state.replaceChildren(el("h2", {}, "State"), el("div", { class: "panel empty" }, el("b", {}, "The class is not known here"), "Start the console with the file that defines it: ", code("headrace console --program shop.py")))
      table.update((await read(api("aggregates", item, "events"), { id, limit: 500 })).events.reverse())
    }
  }
  await show()
}
