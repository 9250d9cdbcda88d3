// Queues (share groups), their dead letters, and redrive.

import { api, read, send } from "./api.js"
import { ask, badge, code, count, el, empty, link, number, Table, tiles } from "./dom.js"

export function queues({ main, live }) {
  const table = new Table([
    { title: "Queue", class: "wrap", cell: row => link(row.group, "queues", row.group), sort: row => row.group },
    { title: "Topic", class: "wrap", cell: row => link(row.topic, "topics", row.topic), sort: row => row.topic },
    { title: "State", cell: row => badge(row.state) },
    { title: "Backlog", class: "number", cell: row => number(row.left), sort: row => row.left },
    { title: "Workers", class: "number", cell: row => number(row.members), sort: row => row.members },
    { title: "Dead letters", class: "number", cell: row => row.dead ? badge(count(row.dead), "warn") : number(0), sort: row => row.dead },
  ], { label: "Queues", key: row => `${row.group}/${row.topic}`, empty: empty("There are no queues yet", "A queue is a share group. A worker creates it: ", code('for message in queue("orders", group="mailer")')) })
  main.append(el("div", { class: "head" }, el("h1", {}, "Queues")), table.node)
  live("/api/queues", {}, document => table.update(document.queues))
}

export function queue({ main, item, live, about, fail }) {
  const figures = el("div", { class: "tiles" }), dead = el("section")
  const partitions = new Table([
    { title: "Topic", class: "wrap", cell: row => link(row.topic, "topics", row.topic) }, { title: "Partition", class: "number", cell: row => count(row.partition) },
    { title: "Acknowledged up to", class: "number", cell: row => count(row.start) }, { title: "Backlog", class: "number", cell: row => number(row.left) },
  ], { label: "Partitions of the queue", key: row => `${row.topic}/${row.partition}`, empty: empty("The queue has read nothing yet") })
  const members = new Table([
    { title: "Client", cell: row => row.client }, { title: "Host", cell: row => row.host }, { title: "Member", class: "mono one", cell: row => row.member }, { title: "Topics", class: "wrap", cell: row => row.topics.join(", ") },
  ], { label: "Workers", key: row => row.member, empty: empty("No worker runs", "The backlog waits until one joins.") })
  main.append(el("div", { class: "head" }, el("div", { class: "crumb" }, link("Queues", "queues")), el("h1", {}, item)), figures, dead,
    el("section", {}, el("h2", {}, "Partitions"), partitions.node), el("section", {}, el("h2", {}, "Workers"), members.node))
  let counts = ""
  live(api("queues", item), {}, async document => {
    const total = Object.values(document.dead).reduce((a, b) => a + b, 0)
    tiles(figures, [["State", document.state], ["Backlog", count(document.partitions.reduce((sum, part) => sum + part.left, 0))], ["Workers", count(document.members.length)], ["Dead letters", count(total), total ? "warn" : ""], ...Object.entries(document.settings).map(([name, value]) => [name, value])])
    partitions.update(document.partitions)
    members.update(document.members)
    if (counts !== (counts = JSON.stringify(document.dead))) try { await letters(document) } catch (fault) { fail(fault) }
  })
  async function letters(document) {
    const topics = [...new Set(document.partitions.map(part => part.topic))], parts = [el("h2", {}, "Dead letters")]
    for (const topic of topics) {
      const answer = await read(api("queues", item, "dead"), { topic, limit: 50 })
      const table = new Table([
        { title: "From", class: "mono", cell: row => `${row.partition}/${row.origin}` }, { title: "Reason", class: "wrap", cell: row => row.reason },
        { title: "Deliveries", class: "number", cell: row => row.deliveries < 0 ? "–" : count(row.deliveries) }, { title: "Key", class: "mono one", cell: row => row.key ?? "" }, { title: "Value", class: "mono one", cell: row => row.value ?? "" },
      ], { label: `Dead letters of ${topic}`, key: row => row.offset, empty: empty("There are no dead letters", "A message that fails too often, or that a worker rejects, appears here.") })
      table.update(answer.letters)
      parts.push(answer.total > 0 && el("div", { class: "bar" }, el("p", { class: "note grow" }, `${count(answer.total)} of ${topic}, the oldest first`),
        !about.read_only && el("button", { class: "main", onclick: () => redrive(item, topic, answer.total) }, "Redrive …")), table.node)
    }
    dead.replaceChildren(...parts.filter(Boolean))
  }
}

function redrive(item, topic, total) {
  ask({ title: "Redrive dead letters", button: "Redrive", about: [el("p", {}, `They go back to ${topic}, for the queue ${item} only, each exactly once, the oldest first. Correct what made them fail before.`)],
    fields: [{ name: "count", label: `How many of ${count(total)}`, kind: "number", value: String(total), required: true }],
    send: async values => {
      const { moved, left } = await send(api("queues", item, "redrive"), { topic, count: Number(values.count) })
      return `${count(moved)} went back to ${topic}, ${count(left)} are left`
    } })
}
