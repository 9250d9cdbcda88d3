// The whole system as one graph: sources, topics, jobs, readers and outputs.

import { count, el, empty, link, rate, Rates, tiles, code, toneOf } from "./dom.js"
import { Graph } from "./graph.js"

const PAGE = { topic: "topics", job: "jobs", group: "groups", queue: "queues", aggregate: "aggregates", database: "captures" }
const COLOR = { topic: "c1", job: "c2", group: "c3", queue: "c4", aggregate: "c5", database: "c7", sink: "c7" }

export function overview({ main, live }) {
  const figures = el("div", { class: "tiles" }), graph = new Graph("The system"), rest = el("p", { class: "note" }), rates = new Rates(), none = empty("Nothing is connected yet",
    "Jobs, captures, consumers and queues appear here with the topics that they read and write. Try ", code("headrace demo"), ", or ", code("headrace init shop"), ".")
  main.append(el("div", { class: "head" }, el("h1", {}, "Overview")), figures, graph.node, rest)
  live("/api/graph", {}, document => {
    const of = kind => document.nodes.filter(node => node.kind === kind), jobs = of("job")
    const failing = jobs.filter(node => ["failed", "lost"].includes(node.state)), dead = of("queue").reduce((sum, node) => sum + node.dead, 0)
    tiles(figures, [["Topics", count(of("topic").length + document.unconnected.length)], ["Jobs running", `${jobs.filter(node => ["running", "held up"].includes(node.state)).length} of ${jobs.length}`, failing.length ? "bad" : ""],
      ["Rows per second", count(Math.round(jobs.reduce((sum, node) => sum + (node.state === "running" ? node.rate ?? 0 : 0), 0)))], ["Lag of jobs", count(jobs.reduce((sum, node) => sum + (node.lag ?? 0), 0))],
      ["Lag of groups", count(of("group").reduce((sum, node) => sum + node.lag, 0))], ["Dead letters", count(dead), dead ? "warn" : ""]])
    const speeds = new Map(of("topic").filter(node => node.end !== undefined).map(node => [node.id, rates.note(node.id, node.end)]))
    const nodes = document.nodes.map(node => ({
      id: node.id, title: node.title ?? node.name, color: node.view ? "c5" : COLOR[node.kind], href: PAGE[node.kind] && `#/${PAGE[node.kind]}${node.kind === "database" ? "" : `/${encodeURIComponent(node.name)}`}`,
      sub: sub(node), tone: node.kind === "job" ? toneOf(node.state).replace("good", "") : node.dead ? "warn" : "", about: node.title ? node.name : "",
    }))
    const edges = document.edges.map(edge => {
      const speed = speeds.get(edge.to) ?? speeds.get(edge.from)
      return { ...edge, flows: speed > 0, label: speeds.has(edge.to) && speed > 0 ? rate(speed) : "" }
    })
    if (nodes.length) { graph.update(nodes, edges); none.remove() } else graph.node.replaceChildren(none)
    const names = document.unconnected
    rest.replaceChildren(...names.length ? [`${names.length === 1 ? "One topic has" : `${count(names.length)} topics have`} no reader or writer that is known: `, ...names.slice(0, 30).flatMap((name, at) => [at ? ", " : "", link(name, "topics", name)]), names.length > 30 ? " …" : ""] : [])
  })
}

function sub(node) {
  if (node.kind === "topic") return `${node.view ? "view" : "topic"}${node.records === undefined ? "" : ` · ${count(node.records)}`}`
  if (node.kind === "job") return `${node.state}${node.state === "running" && node.rate ? ` · ${node.rate < 10 ? node.rate.toFixed(1) : Math.round(node.rate)}/s` : ""}${node.lag ? ` · lag ${count(node.lag)}` : ""}`
  if (node.kind === "group") return `group · ${node.members ? `lag ${count(node.lag)}` : `no members · lag ${count(node.lag)}`}`
  if (node.kind === "queue") return `queue · ${count(node.lag)} left${node.dead ? ` · ${count(node.dead)} dead` : ""}`
  return { database: `capture of ${node.name.replace(/^.*@/, "")}`, sink: "output", aggregate: "aggregate" }[node.kind] ?? node.kind
}
