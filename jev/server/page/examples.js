// Examples to start from.

const option = (name, text = "") => ({ name, text });
const base = { instructions: "", yes: "", no: "", options: [option(""), option("")], levels: ["", ""] };

export const EXAMPLES = [
  {
    title: "Support ticket",
    kind: "text",
    state: "My card was charged twice for one order and nobody answers my mails. I want my money back today!",
    questions: [
      { ...base, name: "refund", type: "noul", instructions: "Does the customer want money back?" },
      {
        ...base,
        name: "topic",
        type: "choice",
        instructions: "What is the message about?",
        options: [
          option("billing", "payments and refunds"),
          option("travel", "trips and hotels"),
          option("music", "songs and bands"),
        ],
      },
      {
        ...base,
        name: "anger",
        type: "score",
        instructions: "How upset is the customer?",
        levels: ["calm", "annoyed", "furious"],
      },
    ],
  },
  {
    title: "Spam",
    kind: "text",
    state:
      "CONGRATULATIONS! You have won a free holiday. Send your bank details within 24 hours to claim your prize.",
    questions: [
      {
        ...base,
        name: "spam",
        type: "noul",
        yes: "advertising, a prize or a scam",
        no: "a message from one person to another",
      },
      {
        ...base,
        name: "urgency",
        type: "score",
        instructions: "How much does it press the reader?",
        levels: ["not at all", "a little", "strongly"],
      },
    ],
  },
  {
    title: "JSON record",
    kind: "json",
    state:
      '{\n  "subject": "App crashes",\n  "body": "Since the update the app closes when I open the camera.",\n  "customer": {"since": 2021, "plan": "team"}\n}',
    questions: [
      {
        ...base,
        name: "team",
        type: "choice",
        instructions: "Which team should answer?",
        options: [
          option("technical", "a crash or an error"),
          option("billing", "a charge or a refund"),
          option("sales", "a purchase or a price"),
        ],
      },
      { ...base, name: "reproducible", type: "noul", instructions: "Does the customer say when it happens?" },
    ],
  },
];
