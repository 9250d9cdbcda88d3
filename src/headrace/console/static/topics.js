// Topics, their messages, and producing.

import { api, read, send } from "./api.js"
import { ago, ask, badge, bytes, code, count, el, empty, link, number, rate, Rates, Table, tiles, time, to, toast } from "./dom.js"

export function topics({ main, live, about }) {
  const rates = new Rates(), hidden = el("input", { type: "checkbox" }), filter = el("input", { type: "search", placeholder: "Name", name: "filter", "aria-label": "Filter topics by name" })
  const table = new Table([
    { title: "Topic", cell: row => link(row.topic, "topics", row.topic), sort: row => row.topic, class: "wrap" },
    { title: "", cell: row => row.kind === "topic" ? "" : badge(row.kind, row.kind === "dead letters" && row.records ? "warn" : "") },
    { title: "Messages", class: "number", cell: row => number(row.records), sort: row => row.records },
    { title: "Rate", class: "number", cell: row => rate(row.rate), sort: row => row.rate ?? 0 },
    { title: "Partitions", class: "number", cell: row => count(row.partitions), sort: row => row.partitions },
    { title: "Replicas", class: "number", cell: row => count(row.replicas), sort: row => row.replicas },
  ], { label: "Topics", key: row => row.topic, empty: () => filter.value ? empty("No topic has this name", "Clear the filter, or show internal topics.")
    : empty("There are no topics yet", "Create one here, or produce to it: ", code("headrace produce orders")) })
  let rows = []
  const update = () => table.update(rows.filter(row => (hidden.checked || row.kind !== "internal") && row.topic.includes(filter.value)))
  hidden.addEventListener("change", update)
  filter.addEventListener("input", update)
  main.append(
    el("div", { class: "head" }, el("h1", {}, "Topics"), el("div", { class: "actions" }, !about.read_only && el("button", { "data-key": "n", onclick: create }, "Create topic"))),
    el("div", { class: "bar" }, el("div", { class: "grow" }, filter), el("label", { class: "line" }, hidden, "Internal topics")), table.node)
  live("/api/topics", {}, document => { rows = document.topics.map(row => ({ ...row, rate: rates.note(row.topic, row.end) })); update() })
}

function create() {
  ask({ title: "Create a topic", button: "Create", fields: [
    { name: "topic", label: "Name", required: true },
    { name: "partitions", label: "Partitions (empty: the broker's default)", kind: "number" },
    { name: "settings", label: "Settings, one per line: retention.ms=86400000", kind: "textarea", rows: 3 },
  ], send: async values => {
    const settings = Object.fromEntries(values.settings.split("\n").map(line => line.trim()).filter(Boolean).map(line => [line.split("=")[0].trim(), line.slice(line.indexOf("=") + 1).trim()]))
    await send("/api/topics", { topic: values.topic, partitions: values.partitions ? Number(values.partitions) : null, settings })
    location.hash = to("topics", values.topic).slice(1)
    return `Created ${values.topic}`
  } })
}

export function topic({ main, item, tab = "messages", live, atEnd, query, about, fail }) {
  const figures = el("div", { class: "tiles" }), rates = new Rates(), content = el("div")
  const tabs = [["messages", "Messages"], ["partitions", "Partitions"], ["settings", "Settings"]]
  main.append(
    el("div", { class: "head" }, el("div", { class: "crumb" }, link("Topics", "topics")), el("h1", {}, item),
      el("div", { class: "actions" }, !about.read_only && !item.startsWith("headrace.") && el("button", { class: "main", "data-key": "n", onclick: () => produce(item, partitions) }, "Produce"))),
    figures, el("nav", { class: "tabs", "aria-label": "Parts of the topic" }, tabs.map(([name, title]) => el("a", { href: to("topics", item, name), "aria-current": name === tab ? "page" : null }, title))), content)
  let partitions = []
  const part = tab === "partitions" ? partitionTable() : tab === "settings" ? settingTable() : messages({ item, query, content, atEnd, fail })
  content.append(part.node)
  live(api("topics", item), {}, document => {
    partitions = document.partitions
    const sum = name => partitions.reduce((total, each) => total + each[name], 0)
    const known = partitions.some(each => each.bytes !== null), offline = partitions.filter(each => each.leader === null || each.in_sync.length < each.replicas.length).length
    const setting = name => document.settings.find(each => each.name === name)?.value
    tiles(figures, [
      ["Messages", count(sum("end") - sum("start"))], ["Rate", textOf(rate(rates.note("all", sum("end"))))], ["Size", known ? bytes(sum("bytes")) : "–"],
      ["Partitions", `${partitions.length}${offline ? `, ${offline} unhealthy` : ""}`, offline ? "bad" : ""], ["Cleanup", setting("cleanup.policy") ?? "–"],
      ["Retention", retention(setting("retention.ms"))],
    ])
    part.update?.(document)
  })
}

const textOf = part => part.textContent ?? part
const retention = ms => ms === undefined || ms === null ? "–" : Number(ms) < 0 ? "forever" : Number(ms) >= 86400000 ? `${(Number(ms) / 86400000).toLocaleString("en", { maximumFractionDigits: 1 })} days` : `${(Number(ms) / 60000).toLocaleString("en", { maximumFractionDigits: 1 })} min`

function partitionTable() {
  const table = new Table([
    { title: "Partition", class: "number", cell: row => count(row.partition) },
    { title: "First offset", class: "number", cell: row => count(row.start) },
    { title: "End offset", class: "number", cell: row => count(row.end) },
    { title: "Messages", class: "number", cell: row => number(row.end - row.start) },
    { title: "Size", class: "number", cell: row => bytes(row.bytes) },
    { title: "Leader", class: "number", cell: row => row.leader ?? badge("offline") },
    { title: "Replicas", cell: row => row.replicas.join(", ") },
    { title: "In sync", cell: row => row.in_sync.length < row.replicas.length ? [row.in_sync.join(", "), " ", badge("under-replicated")] : row.in_sync.join(", ") },
  ], { label: "Partitions", key: row => row.partition, empty: empty("The topic has no partitions") })
  return { node: table.node, update: document => table.update(document.partitions) }
}

function settingTable() {
  const table = new Table([
    { title: "Setting", class: "mono", cell: row => row.name },
    { title: "Value", class: "mono wrap", cell: row => row.value ?? "" },
    { title: "", cell: row => row.is_default ? "" : badge("set on this topic", "plain") },
  ], { label: "Settings", key: row => row.name, empty: empty("The settings are not visible", "Your user may not read the settings of this topic.") })
  const order = settings => [...settings].sort((a, b) => a.is_default - b.is_default || (a.name < b.name ? -1 : 1))
  return { node: table.node, update: document => table.update(order(document.settings)) }
}

function messages({ item, query, atEnd, fail }) {
  const field = (name, label, input) => { input.name = name; input.value = query.get(name) ?? input.value; return el("label", {}, label, input) }
  const start = el("select", {}, [["newest", "Newest first"], ["start", "Oldest first"], ["offset", "From offset"], ["time", "From time"]].map(([value, text]) => el("option", { value }, text)))
  const at = el("input", { type: "text", placeholder: "42" }), partition = el("input", { type: "number", min: "0", placeholder: "all" })
  const filter = el("input", { type: "search", placeholder: 'tea   key=k1   amount>10   header.trace=7   product~"green tea"', spellcheck: "false" })
  const found = el("p", { class: "note", role: "status" }), more = el("button", { hidden: true, onclick: () => search(true) }, "Load more"), follow = el("input", { type: "checkbox" })
  const place = field("at", "Offset or time", at)
  const form = el("form", { class: "bar", onsubmit: event => { event.preventDefault(); search() } },
    field("from", "Show", start), place, field("partition", "Partition", partition), el("div", { class: "grow" }, field("filter", "Filter", filter)),
    el("button", { type: "submit" }, "Search"), el("label", { class: "line", title: "Show messages as they arrive" }, follow, "Live"))
  partition.style.width = "84px"
  at.style.width = "180px"
  const adapt = () => { place.hidden = !["offset", "time"].includes(start.value); at.placeholder = start.value === "time" ? "2026-01-31T12:00 or -5m" : "42" }
  start.addEventListener("change", () => { adapt(); if (place.hidden) search(); else at.focus() })
  adapt()
  const table = new Table([
    { title: "Offset", class: "number mono", cell: row => el("button", { class: "quiet", "aria-expanded": "false", onclick: event => { event.stopPropagation(); table.toggle(event.target.closest("tr"), row) } }, `${row.partition}/${row.offset}`) },
    { title: "Time", cell: row => el("span", { title: ago(row.timestamp) }, time(row.timestamp)), class: "mono" },
    { title: "Key", class: "mono one", cell: row => row.key ?? el("span", { class: "soft" }, "none") },
    { title: "Value", class: "mono one", cell: row => row.value ?? el("span", { class: "soft" }, "tombstone") },
    { title: "Headers", class: "mono one", cell: row => row.headers.map(([name, value]) => `${name}=${value ?? ""}`).join("  ") },
  ], { label: "Messages", key: row => `${row.partition}/${row.offset}`, detail, empty: () => empty("No messages here", filter.value ? "No message passes the filter. Search in a longer range, or change the filter." : "Produce one with the button above, or from a terminal: ", filter.value ? null : code(`headrace produce ${item}`)) })
  let rows = [], next = null, running = 0, source = null

  async function search(isMore = false) {
    const run = ++running
    if (!isMore) { rows = []; next = null }
    found.textContent = "Searching …"
    try {
      const from = place.hidden ? start.value : at.value || "start"
      const answer = await read(api("topics", item, "messages"), { from, partition: partition.value, filter: filter.value, next, limit: 50 })
      if (run !== running) return
      fail(null)
      rows = [...rows, ...answer.messages]
      next = answer.next
      table.update(rows)
      const scanned = answer.scanned > answer.messages.length ? ` of ${count(answer.scanned)} that were looked through` : ""
      found.textContent = rows.length || answer.exhausted ? `${count(rows.length)} shown${scanned}${answer.unreadable ? `, ${count(answer.unreadable)} cannot be read` : ""}${answer.exhausted ? ". The search stopped after some seconds: continue it below." : ""}` : ""
      more.hidden = !next
      more.textContent = answer.exhausted ? "Continue the search" : `Load more (${count(answer.left)} left)`
    } catch (fault) { if (run === running) { found.textContent = ""; fail(fault) } }
  }
  function watch() {
    source?.close()
    if (!follow.checked) return
    source = new EventSource(`/topics/${encodeURIComponent(item)}/records?from=latest${partition.value ? `&partition=${partition.value}` : ""}`)
    let waiting = []
    source.addEventListener("record", event => {
      if (!waiting.length) requestAnimationFrame(() => { rows = [...waiting.reverse(), ...rows].slice(0, 200); waiting = []; table.update(rows); found.textContent = `Live: the newest ${rows.length} messages` })
      waiting = [...waiting, fromLive(JSON.parse(event.data))].slice(-200)
    })
    source.addEventListener("end", event => { toast(JSON.parse(event.data).error, true) })
  }
  follow.addEventListener("change", () => { if (follow.checked) { start.value = "newest"; filter.value = ""; adapt(); search() } watch() })
  partition.addEventListener("change", watch)
  atEnd(() => source?.close())
  search()
  return { node: el("div", {}, form, found, table.node, el("p", {}, more)) }
}

function fromLive(record) {
  const text = value => value === null || typeof value === "string" ? value : JSON.stringify(value)
  return { ...record, key: text(record.key), value: text(record.value), encoding: typeof record.value === "string" ? "text" : "json", bytes: null, headers: Object.entries(record.headers).map(([name, value]) => [name, text(value)]) }
}

function detail(row) {
  let value = row.value
  if (row.encoding === "json" && !row.cut) try { value = JSON.stringify(JSON.parse(value), null, 2) } catch { /* it is shown as it is */ }
  return [
    el("dl", {}, el("dt", {}, "Key"), el("dd", { class: "mono" }, row.key ?? "none", row.key_encoding === "base64" ? " (base64)" : ""),
      el("dt", {}, "Time"), el("dd", {}, time(row.timestamp)), row.bytes !== null && [el("dt", {}, "Size"), el("dd", {}, bytes(row.bytes))],
      row.headers.map(([name, text]) => [el("dt", {}, name), el("dd", { class: "mono" }, text ?? "null")])),
    el("pre", {}, value ?? "null: a tombstone, which deletes the key in a compacted topic"),
    row.cut && el("p", { class: "note" }, "The value is cut here."), row.encoding === "base64" && el("p", { class: "note" }, "The value is binary: this is base64."),
    row.value !== null && el("button", { class: "quiet", onclick: () => navigator.clipboard?.writeText(value).then(() => toast("Copied")) }, "Copy value"),
  ].flat().filter(Boolean)
}

function produce(item, partitions) {
  ask({ title: `Produce to ${item}`, button: "Produce", about: [el("p", { class: "note" }, "Ctrl+Enter sends. An empty key is no key.")], fields: [
    { name: "key", label: "Key" },
    { name: "value", label: "Value", kind: "textarea", placeholder: '{"product": "tea", "amount": 12.5}' },
    { name: "headers", label: "Headers, one per line: trace: 17", kind: "textarea", rows: 2 },
    { name: "partition", label: "Partition", kind: "select", options: [["", "by the key"], ...partitions.map(each => [String(each.partition), String(each.partition)])] },
  ], send: async values => {
    const headers = Object.fromEntries(values.headers.split("\n").map(line => line.trim()).filter(Boolean).map(line => [line.split(":")[0].trim(), line.slice(line.indexOf(":") + 1).trim()]))
    const at = await send(api("topics", item, "messages"), { key: values.key || null, value: values.value, headers, partition: values.partition === "" ? null : Number(values.partition) })
    document.querySelector("#main form")?.requestSubmit()
    return `Stored at ${at.partition}/${at.offset}`
  } })
}
