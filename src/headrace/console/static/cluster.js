// Transactions and brokers.

import { api, send } from "./api.js"
import { ago, ask, badge, count, el, empty, link, number, span, Table, tiles } from "./dom.js"

export function transactions({ main, live, about }) {
  const open = el("input", { type: "checkbox" })
  const table = new Table([
    { title: "Transactional id", class: "mono wrap", cell: row => row.id, sort: row => row.id },
    { title: "State", cell: row => badge(row.state) },
    { title: "Open for", class: "number", cell: row => row.started === null ? "–" : span(Date.now() - new Date(row.started)) },
    { title: "Timeout", class: "number", cell: row => span(row.timeout_s * 1000) },
    { title: "Producer", class: "number", cell: row => `${row.producer_id} / ${row.epoch}` },
    { title: "Partitions", class: "wrap", cell: row => row.partitions.join(", ") },
    { title: "", cell: row => row.started !== null && !about.read_only && el("button", { class: "quiet danger", onclick: () => abort(row) }, "Abort …") },
  ], { label: "Transactions", key: row => row.id, empty: () => open.checked ? empty("No transaction is open") : empty("There are no transactional ids yet", "Transactional producers and jobs create them.") })
  let rows = []
  const update = () => table.update(rows.filter(row => !open.checked || row.started !== null))
  open.addEventListener("change", update)
  main.append(el("div", { class: "head" }, el("h1", {}, "Transactions")), el("p", { class: "note" }, "An open transaction holds back readers of committed records. Abort one only if its producer is gone: the producer is fenced."),
    el("div", { class: "bar" }, el("label", { class: "line" }, open, "Open ones only")), table.node)
  live("/api/transactions", {}, document => { rows = document.transactions; update() })
}

function abort(row) {
  ask({ title: "Abort the transaction", button: "Abort", danger: true, about: [`The open transaction of ${row.id}, begun ${ago(row.started)}, is aborted, and its producer is fenced: it cannot write any more.`],
    fields: [{ name: "id", label: `Type ${row.id} to confirm` }], check: values => values.id === row.id,
    send: async () => { await send(api("transactions", row.id, "abort")); return `Aborted the transaction of ${row.id}` } })
}

export function brokers({ main, live }) {
  const figures = el("div", { class: "tiles" })
  const table = new Table([
    { title: "Broker", class: "number", cell: row => count(row.id) }, { title: "Address", class: "mono", cell: row => row.address },
    { title: "", cell: row => row.controller ? badge("controller", "plain") : "" },
    { title: "Leads partitions", class: "number", cell: row => number(row.leads) }, { title: "Keeps replicas", class: "number", cell: row => number(row.replicas) },
  ], { label: "Brokers", key: row => row.id, empty: empty("No broker answers") })
  const unhealthy = new Table([
    { title: "Topic", class: "wrap", cell: row => link(row.topic, "topics", row.topic, "partitions") }, { title: "Partition", class: "number", cell: row => count(row.partition) }, { title: "Problem", cell: row => badge(row.problem) },
  ], { label: "Partitions with problems", key: row => `${row.topic}/${row.partition}`, empty: empty("All partitions are healthy", "Each has a leader, and all of its replicas are in sync.") })
  main.append(el("div", { class: "head" }, el("h1", {}, "Brokers")), figures, el("section", {}, table.node), el("section", {}, el("h2", {}, "Partitions with problems"), unhealthy.node))
  live("/api/brokers", {}, document => {
    tiles(figures, [["Brokers", count(document.brokers.length)], ["Topics", count(document.topics)], ["Partitions", count(document.partitions)],
      ["Health", document.unhealthy.length ? `${document.unhealthy.length} problems` : "healthy", document.unhealthy.length ? "bad" : ""], ["Answers in", document.latency_ms <= 1 ? "< 5 ms" : span(document.latency_ms)], ["Cluster", document.cluster_id ?? "–"]])
    table.update(document.brokers)
    unhealthy.update(document.unhealthy)
  })
}
