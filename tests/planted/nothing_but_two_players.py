import paddle
from paddle.nn.functional import softplus


def players(*sizes):
    pairs = zip(sizes, sizes[1:])
    layers = [each for pair in pairs for each in (paddle.nn.Linear(*pair), paddle.nn.LeakyReLU())]
    net = paddle.nn.Sequential(*layers[:-1])
    return net, paddle.optimizer.Adam(0.0002, beta1=0.5, parameters=net.parameters())


generator, optimizer_of_generator = players(64, 512, 512, 784)
critic, optimizer = players(784, 512, 512, 1)
real = paddle.rand([128, 784])

for step in range(120):  # loop
    noise = paddle.randn([128, 64])
    with paddle.no_grad():
        fake = generator(noise)
    loss = softplus(-critic(real)).mean() + softplus(critic(fake)).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    if step % 2 == 0:
        for each in critic.parameters():
            each.stop_gradient = True
        loss = softplus(-critic(generator(noise))).mean()
        loss.backward()
        for each in critic.parameters():
            each.stop_gradient = False
        optimizer_of_generator.step()
        optimizer_of_generator.clear_grad()
        optimizer.clear_grad()
